//! Servers that things happen to.

use std::io;
use std::time::{Duration, Instant};

use ff_test_load::faults::Ground;
use ff_test_servers::valkey::{ValkeyCluster, ValkeyServer, ValkeyServerOptions};
use libtest_mimic::Failed;

use crate::site::Site;

/// How long servers may take to fall still.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long nothing is asked by then.
const STILLNESS: Duration = Duration::from_millis(300);

/// Slots that the deployment on the cluster spreads over.
const SHARDS: u16 = 6;

/// A server.
pub(crate) struct Alone(pub(crate) ValkeyServer);

impl Alone {
    /// One that has on its disk what it has acknowledged.
    pub(crate) fn start() -> Result<Self, Failed> {
        let options = ValkeyServerOptions::default().durable(true).setting("appendfsync", "always");
        Ok(Self(ValkeyServer::start(options)?))
    }

    /// Cuts connections of a type: `normal` for those that ask, `pubsub` for those that listen.
    pub(crate) fn cut(&self, of_type: &str) -> io::Result<()> {
        cut(&self.0, of_type)
    }
}

impl Ground for Alone {
    type Site = Site;

    fn site(&self) -> Site {
        Site::server(self.0.url())
    }

    fn outlive_the_dead(&self) -> Result<(), Failed> {
        Ok(self.cut("normal")?)
    }

    fn wait_until_still(&self) -> Result<(), Failed> {
        wait_until_still(std::slice::from_ref(&self.0))
    }
}

/// Three primaries with a replica each.
pub(crate) struct Together {
    pub(crate) cluster: ValkeyCluster,
    /// How many replicas have a commit before it is acknowledged.
    replicas: u32,
}

impl Together {
    /// One whose nodes know after a kill what they had.
    pub(crate) fn start(replicas: u32) -> Result<Self, Failed> {
        Ok(Self { cluster: ValkeyCluster::start(&ValkeyServerOptions::default().durable(true), 3, 1)?, replicas })
    }

    /// Kills one of the primaries a moment after it has lost its replica, and returns when that has taken over all the same; says which one it
    /// was. What the primary did in between, its replica does not know.
    pub(crate) fn kill_primary(&mut self, rng: &mut fastrand::Rng) -> Result<usize, Failed> {
        let primaries = self.cluster.primaries();
        let killed = *rng.choice(&primaries).ok_or("there is no primary")?;
        let primary = self.cluster.node(killed);
        primary.ask(&["ACL", "SETUSER", "default", "-psync", "-sync"])?;
        cut(primary, "replica")?;
        std::thread::sleep(Duration::from_millis(rng.u64(..300)));
        self.cluster.node(killed).kill();
        self.cluster.wait_for_failover()?;
        Ok(killed)
    }

    /// Moves some of the slots that hold anything to other primaries.
    pub(crate) fn move_slots(&self, many: usize, rng: &mut fastrand::Rng) -> Result<(), Failed> {
        let mut slots = self.cluster.slots_in_use()?;
        rng.shuffle(&mut slots);
        for slot in slots.into_iter().take(many) {
            self.cluster.move_slot(slot, rng.usize(..))?;
        }
        Ok(())
    }

    /// Starts a node again, and returns when it has what its primary has.
    pub(crate) fn bring_back(&mut self, node: usize) -> Result<(), Failed> {
        self.cluster.node(node).restart()?;
        Ok(self.cluster.wait_until_whole()?)
    }
}

impl Ground for Together {
    type Site = Site;

    fn site(&self) -> Site {
        Site { urls: self.cluster.urls(), shards: Some(SHARDS), replicas: self.replicas }
    }

    fn outlive_the_dead(&self) -> Result<(), Failed> {
        self.cluster.nodes().iter().try_for_each(|node| cut(node, "normal"))?;
        // What the primaries have done, their replicas may not have yet.
        Ok(self.cluster.wait_until_whole()?)
    }

    fn wait_until_still(&self) -> Result<(), Failed> {
        wait_until_still(self.cluster.nodes())
    }
}

/// What was sent on a connection and not read yet goes with it.
fn cut(server: &ValkeyServer, of_type: &str) -> io::Result<()> {
    server.ask(&["CLIENT", "KILL", "TYPE", of_type]).map(drop)
}

fn wait_until_still(servers: &[ValkeyServer]) -> Result<(), Failed> {
    let began = Instant::now();
    let mut before = calls(servers)?;
    loop {
        std::thread::sleep(STILLNESS);
        let now = calls(servers)?;
        if now == before {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err("who waits asks the server again and again".into());
        }
        before = now;
    }
}

/// What servers tell of calls of our functions.
fn calls(servers: &[ValkeyServer]) -> io::Result<Vec<String>> {
    let mut calls = Vec::new();
    for server in servers {
        let told = server.ask(&["INFO", "commandstats"])?;
        calls.extend(told.lines().filter(|line| line.starts_with("cmdstat_fcall")).map(str::to_owned));
    }
    Ok(calls)
}
