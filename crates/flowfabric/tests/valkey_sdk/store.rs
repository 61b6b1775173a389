//! The stores of these tests: key prefixes on one Valkey server, which goes with the process, or on a cluster if `FF_VALKEY_CLUSTER` is set.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ff_test_servers::valkey::{ValkeyCluster, ValkeyServer, ValkeyServerOptions};

enum Servers {
    One(ValkeyServer),
    Cluster(ValkeyCluster),
}

static SERVERS: LazyLock<Servers> = LazyLock::new(|| {
    let options = ValkeyServerOptions::default();
    let servers = if std::env::var_os("FF_VALKEY_CLUSTER").is_some() {
        ValkeyCluster::start(&options, 3, 1).map(Servers::Cluster)
    } else {
        ValkeyServer::start(options).map(Servers::One)
    };
    servers.unwrap_or_else(|error| panic!("{error}"))
});

static PREFIXES: AtomicU32 = AtomicU32::new(0);

/// A store that several processes can open.
pub(crate) struct Shared {
    pub(crate) address: String,
}

/// A new store for several processes.
pub(crate) fn shared() -> Shared {
    Shared { address: own() }
}

/// The address of a new store for this process.
pub(crate) fn own() -> String {
    named(&format!("case-{}", PREFIXES.fetch_add(1, Ordering::Relaxed)))
}

/// Programs of `examples/` that need another kind of store.
pub(crate) const EXAMPLES_ELSEWHERE: [&str; 1] = ["outbox"];

/// The address of the store of a program.
pub(crate) fn named(program: &str) -> String {
    match &*SERVERS {
        Servers::One(server) => format!("{}?prefix={program}", server.url()),
        Servers::Cluster(cluster) => format!("{}&prefix={program}", cluster.url()),
    }
}

/// Whether the store of a program holds executions.
pub(crate) fn holds_work(program: &str) -> bool {
    let nodes = match &*SERVERS {
        Servers::One(server) => std::slice::from_ref(server),
        Servers::Cluster(cluster) => cluster.nodes(),
    };
    let records = format!("{{{program}:*}}r*");
    nodes.iter().any(|node| !node.ask(&["KEYS", &records]).unwrap().is_empty())
}
