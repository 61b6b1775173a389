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
    /// The primaries first, then the replicas in the order of their primaries.
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
                .setting("cluster-replica-validity-factor", "0");
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

    /// All servers: the primaries first, then the replicas in the order of their primaries.
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

    /// Waits until every slot has a primary that all nodes know, and every replica has what its primary has.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_until_whole(&self) -> io::Result<()> {
        self.wait_for(|node| {
            let is_ok = node.ask(&["CLUSTER", "INFO"])?.contains("cluster_state:ok");
            let replication = node.ask(&["INFO", "replication"])?;
            let is_linked = !replication.contains("role:slave") || replication.contains("master_link_status:up");
            Ok(is_ok && is_linked)
        })
    }

    fn wait_for(&self, holds: impl Fn(&ValkeyServer) -> io::Result<bool>) -> io::Result<()> {
        self.nodes.iter().try_for_each(|node| until(|| holds(node)))
    }
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
