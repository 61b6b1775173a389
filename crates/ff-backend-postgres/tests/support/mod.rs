//! One server for all cases of a test program, and for each of them a store in a schema of its own.

use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use ff_backend_postgres::{PostgresOptions, PostgresStore};
use ff_core::Result;
use ff_engine::clock::Clock;
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions, Schema};

/// More than a store takes: its pool, one to listen, and those that are just being closed.
const CONNECTIONS_PER_CASE: u32 = 40;

static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| {
    let side_by_side = available_parallelism().map_or(1, usize::from);
    let connections = CONNECTIONS_PER_CASE * u32::try_from(side_by_side + 1).expect("a handful of processors");
    let options = PostgresServerOptions::default().durable(false).max_connections(connections).directory("/dev/shm");
    PostgresServer::start(options).unwrap_or_else(|error| panic!("{error}"))
});

/// The server of all cases.
pub(crate) fn server() -> &'static PostgresServer {
    &SERVER
}

/// The schema of one case.
pub(crate) fn schema() -> Schema {
    server().schema().unwrap_or_else(|error| panic!("{error}"))
}

/// How a store works.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) fast_paths: bool,
    /// Executions that may wait in the journal.
    pub(crate) young_max: usize,
}

/// As it works unless told otherwise.
pub(crate) const FAST: Form = Form { fast_paths: true, young_max: 512 };

/// All executions but the newest settle at once.
#[allow(dead_code, reason = "not every program has use for it")]
pub(crate) const SETTLING: Form = Form { fast_paths: true, young_max: 1 };

/// No shortcuts, and no journal.
#[allow(dead_code, reason = "not every program has use for it")]
pub(crate) const GENERAL: Form = Form { fast_paths: false, young_max: 0 };

/// A store in a schema.
pub(crate) async fn connect(schema: &str, clock: Arc<dyn Clock>, form: Form) -> Result<PostgresStore> {
    let options = PostgresOptions::new(&server().url())?.schema(schema)?.writers(1);
    PostgresStore::connect(options.clock(clock).fast_paths(form.fast_paths).young_max(form.young_max)).await
}
