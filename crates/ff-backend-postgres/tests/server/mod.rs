//! One server for all tests of a binary, and a schema of its own for each of them.

#![allow(dead_code, reason = "not every binary needs everything")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ff_backend_postgres::{Client, Pool, PostgresOptions, SchemaName, prepare};
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};

static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| start(PostgresServerOptions::default()));
static SCHEMAS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn start(options: PostgresServerOptions) -> PostgresServer {
    PostgresServer::start(options).unwrap_or_else(|error| panic!("{error}"))
}

/// Where the server is that all tests share.
pub(crate) fn url() -> String {
    SERVER.url()
}

/// How to reach it.
pub(crate) fn options() -> PostgresOptions {
    PostgresOptions::new(&url()).unwrap()
}

/// The name of a schema that does not exist.
pub(crate) fn fresh_name() -> SchemaName {
    SchemaName::new(&format!("case_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed))).unwrap()
}

pub(crate) async fn pool() -> Pool {
    Pool::connect(&options()).await.unwrap()
}

/// A pool, and a schema with our layout.
pub(crate) async fn prepared() -> (Pool, SchemaName) {
    let (pool, schema) = (pool().await, fresh_name());
    prepare(&pool, &schema).await.unwrap();
    (pool, schema)
}

/// Runs statements with `{schema}` for the schema.
pub(crate) async fn run(pool: &Pool, schema: &SchemaName, sql: &str) {
    pool.get().await.unwrap().batch_execute(&sql.replace("{schema}", &schema.quoted())).await.unwrap();
}

/// The number that a statement with `{schema}` answers.
pub(crate) async fn number(client: &Client, schema: &SchemaName, sql: &str) -> i64 {
    client.query_one(&sql.replace("{schema}", &schema.quoted()), &[]).await.unwrap().get(0)
}
