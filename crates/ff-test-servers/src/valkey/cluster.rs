//! A cluster of primaries, each with replicas.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::{GLANCE, ValkeyServer, ValkeyServerOptions};
use crate::error::{Attempted, ServerError};
use crate::place::free_port;

/// How long the nodes may take to agree.
const PATIENCE: Duration = Duration::from_secs(60);

/// Slots of a cluster.
const SLOTS: usize = 16_384;

/// After how many milliseconds without a word a node counts as dead.
const NODE_TIMEOUT_MS: &str = "1000";

/// Servers that share the slots between them.
pub struct ValkeyCluster {
    /// First those that were made primaries, then their replicas in the same order.
    nodes: Vec<ValkeyServer>,
    primaries: usize,
}

impl ValkeyCluster {
    /// Starts so many primaries with so many replicas each, and waits until all of them agree.
    ///
    /// # Errors
    /// When a server does not start, or they do not agree.
    pub fn start(options: &ValkeyServerOptions, primaries: usize, replicas: usize) -> Result<Self, ServerError> {
        let mut nodes = Vec::new();
        for _ in 0..primaries * (1 + replicas) {
            let node = options
                .clone()
                .setting("cluster-enabled", "yes")
                .setting("cluster-port", free_port().to_string())
                .setting("cluster-node-timeout", NODE_TIMEOUT_MS)
                .setting("cluster-replica-validity-factor", "0")
                // Replicas come one at a time, so there is nobody to wait for.
                .setting("repl-diskless-sync-delay", "0");
            nodes.push(ValkeyServer::start(node)?);
        }
        let cluster = Self { nodes, primaries };
        cluster.form().attempted("form a cluster")?;
        Ok(cluster)
    }

    /// Where to connect: `redis://127.0.0.1:PORT?cluster=true`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}?cluster=true", self.nodes[0].url())
    }

    /// Where all nodes are, each as in [`url`](Self::url).
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("{}?cluster=true", node.url())).collect()
    }

    /// The nodes that are primaries now, among those that answer.
    #[must_use]
    pub fn primaries(&self) -> Vec<usize> {
        let is_primary = |node: &ValkeyServer| role(node).is_ok_and(|role| role == Role::Primary);
        (0..self.nodes.len()).filter(|number| is_primary(&self.nodes[*number])).collect()
    }

    /// Waits until every slot has a primary again, although one of them was killed.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_for_failover(&self) -> io::Result<()> {
        until(|| {
            let primaries = self.primaries();
            let is_ok = |number: &usize| is_ok(&self.nodes[*number]).unwrap_or(false);
            Ok(primaries.len() == self.primaries && primaries.iter().all(is_ok))
        })
    }

    /// All servers: first those that were made primaries, then their replicas in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[ValkeyServer] {
        &self.nodes
    }

    /// One of the servers, to kill it or to start it again.
    pub fn node(&mut self, number: usize) -> &mut ValkeyServer {
        &mut self.nodes[number]
    }

    fn form(&self) -> io::Result<()> {
        for (number, node) in self.nodes.iter().enumerate() {
            if number < self.primaries {
                let (first, last) = (number * SLOTS / self.primaries, (number + 1) * SLOTS / self.primaries - 1);
                node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            }
            let (port, bus) = (node.port().to_string(), bus_port(node)?);
            self.nodes[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        self.wait_for(|node| Ok(node.ask(&["CLUSTER", "INFO"])?.contains(&known)))?;
        for (number, replica) in self.nodes.iter().enumerate().skip(self.primaries) {
            let primary = self.nodes[number % self.primaries].ask(&["CLUSTER", "MYID"])?;
            // Its primary may not have told it yet that it is one.
            until(|| Ok(replica.ask(&["CLUSTER", "REPLICATE", &primary]).is_ok()))?;
        }
        self.wait_until_whole()
    }

    /// Waits until all nodes answer, every slot has a primary that all of them know, and every replica has what its primary has. A node that
    /// comes back takes itself for a primary until the others tell it who took its place.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_until_whole(&self) -> io::Result<()> {
        until(|| {
            let mut primaries = 0;
            for node in &self.nodes {
                match role(node)? {
                    Role::Primary => primaries += 1,
                    Role::Replica { is_linked: true } => {}
                    Role::Replica { is_linked: false } => return Ok(false),
                }
                if !is_ok(node)? {
                    return Ok(false);
                }
            }
            Ok(primaries == self.primaries)
        })
    }

    fn wait_for(&self, holds: impl Fn(&ValkeyServer) -> io::Result<bool>) -> io::Result<()> {
        self.nodes.iter().try_for_each(|node| until(|| holds(node)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Primary,
    Replica { is_linked: bool },
}

/// What a node takes itself for.
fn role(node: &ValkeyServer) -> io::Result<Role> {
    let told = node.ask(&["INFO", "replication"])?;
    let is_linked = told.contains("master_link_status:up");
    Ok(if told.contains("role:slave") { Role::Replica { is_linked } } else { Role::Primary })
}

/// Whether a node knows a primary for every slot.
fn is_ok(node: &ValkeyServer) -> io::Result<bool> {
    Ok(node.ask(&["CLUSTER", "INFO"])?.contains("cluster_state:ok"))
}

/// The port on which a node talks to the others.
fn bus_port(node: &ValkeyServer) -> io::Result<String> {
    let told = node.ask(&["CONFIG", "GET", "cluster-port"])?;
    told.lines().nth(1).map(str::to_owned).ok_or_else(|| io::Error::other("the node has no cluster-port"))
}

fn until(holds: impl Fn() -> io::Result<bool>) -> io::Result<()> {
    let began = Instant::now();
    while !holds()? {
        if began.elapsed() > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the nodes of the cluster do not agree"));
        }
        thread::sleep(GLANCE);
    }
    Ok(())
}
