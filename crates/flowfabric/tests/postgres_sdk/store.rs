//! The stores of these tests: schemas of one Postgres server, which goes with the process.

use std::sync::LazyLock;

use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};

static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| {
    let options = PostgresServerOptions::default().max_connections(400).directory("/dev/shm");
    PostgresServer::start(options).unwrap_or_else(|error| panic!("{error}"))
});

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
    let schema = SERVER.schema().unwrap_or_else(|error| panic!("{error}"));
    format!("{}?schema={}", SERVER.url(), schema.keep())
}

/// Programs of `examples/` that need another kind of store.
pub(crate) const EXAMPLES_ELSEWHERE: [&str; 0] = [];

/// The address of the store of a program.
pub(crate) fn named(program: &str) -> String {
    format!("{}?schema={}", SERVER.url(), program.replace('-', "_"))
}

/// Whether the store of a program holds executions.
pub(crate) fn holds_work(program: &str) -> bool {
    let used = format!("SELECT count(*) > 0 FROM {}.execution", program.replace('-', "_"));
    SERVER.run(&used).unwrap() == "t"
}
