//! The Postgres that a run starts for itself, schemas on it, and plain connections to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use tokio_postgres::{Client, NoTls};

use crate::disk::require_disk;
use crate::process;
use crate::stores::Busy;

/// After so long the server must be counting.
const PATIENCE: Duration = Duration::from_secs(10);

/// For the session that looks: what it runs itself does not count.
const LOOK_ON: &str = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SET pg_stat_statements.track = 'none'";

const PROBE: &str = "SELECT 1 AS probe";
const PROBED: &str = "SELECT count(*) > 0 FROM pg_stat_statements WHERE query LIKE '%AS probe'";
const COUNTED: &str = "
    SELECT query, calls FROM pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY calls DESC, query";

/// A server that waits for the disk at every commit; gone when dropped.
pub struct Server {
    process: PostgresServer,
    version: String,
    file_system: String,
}

impl Server {
    /// Starts one, on a disk.
    pub async fn start() -> Result<Self> {
        let options = PostgresServerOptions::default().durable(true);
        let options = options.setting("shared_preload_libraries", "pg_stat_statements");
        let process = tokio::task::spawn_blocking(|| PostgresServer::start(options)).await??;
        let file_system =
            require_disk(process.data_directory()).context("choose another folder for temporary files with TMPDIR")?;
        let client = connect(&process.url()).await?;
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            let value = show(&client, setting).await?;
            ensure!(value == "on", "the server runs with {setting} = {value}: the numbers would mean nothing");
        }
        // Until a scenario asks for it.
        track_statements(&client, "none").await?;
        process::count_also(postmaster(&process)?);
        Ok(Self { version: show(&client, "server_version").await?, file_system, process })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        self.process.url()
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The kind of file system that holds its files.
    pub fn file_system(&self) -> &str {
        &self.file_system
    }
}

/// Names of schemas, each for one measurement.
#[derive(Clone, Debug)]
pub struct Schemas {
    url: String,
    made: Arc<AtomicU32>,
    left: Arc<Mutex<Vec<String>>>,
}

impl Schemas {
    /// On this server.
    pub fn new(url: String) -> Self {
        Self { url, made: Arc::default(), left: Arc::default() }
    }

    /// The server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A name that nobody else has. Schemas whose names were dropped go first, so that nobody is measured while they do.
    pub async fn fresh(&self) -> Result<Schema> {
        let client = connect(&self.url).await?;
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        // A store that is not gone yet may hold a lock for a moment, and none for long.
        client.batch_execute("SET lock_timeout = '30s'").await?;
        for schema in left {
            client.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await?;
        }
        client.batch_execute("CHECKPOINT").await?;
        let name = format!("bench_{}", self.made.fetch_add(1, Ordering::Relaxed));
        Ok(Schema { name, left: Arc::clone(&self.left) })
    }
}

/// A name of a schema; whoever gets it creates the schema.
#[derive(Debug)]
pub struct Schema {
    name: String,
    left: Arc<Mutex<Vec<String>>>,
}

impl Schema {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }
}

/// The process whose children serve connections: the first line of a file that it keeps.
fn postmaster(server: &PostgresServer) -> Result<u32> {
    let file = server.data_directory().join("postmaster.pid");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    text.lines().next().and_then(|line| line.trim().parse().ok()).with_context(|| format!("{text:?} names no process"))
}

async fn show(client: &Client, setting: &str) -> Result<String> {
    Ok(client.query_one(&format!("SHOW {setting}"), &[]).await?.try_get(0)?)
}

/// Which statements of all sessions are counted; sessions hear of it a moment later.
pub async fn track_statements(client: &Client, which: &str) -> Result<()> {
    client.batch_execute(&format!("ALTER SYSTEM SET pg_stat_statements.track = '{which}'")).await?;
    client.execute("SELECT pg_reload_conf()", &[]).await?;
    Ok(())
}

/// A connection of its own; closed when the client is dropped.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("cannot connect to Postgres")?;
    // A connection that breaks fails the calls of its client, which tell why.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// What the server runs for others within this time, the most frequent first.
pub async fn count(url: &str, time: Duration) -> Result<Vec<Busy>> {
    let (onlooker, other) = (connect(url).await?, connect(url).await?);
    onlooker.batch_execute(LOOK_ON).await?;
    track_statements(&onlooker, "top").await?;
    tokio::time::timeout(PATIENCE, until_counted(&onlooker, &other)).await.context("the server counts nothing")??;
    onlooker.execute("SELECT pg_stat_statements_reset()", &[]).await?;
    tokio::time::sleep(time).await;
    let rows = onlooker.query(COUNTED, &[]).await?;
    track_statements(&onlooker, "none").await?;
    rows.iter().map(|row| Ok(Busy { query: one_line(row.try_get(0)?), calls: row.try_get(1)? })).collect()
}

/// Returns when statements of sessions that were there before are counted.
async fn until_counted(onlooker: &tokio_postgres::Client, other: &tokio_postgres::Client) -> Result<()> {
    while !onlooker.query_one(PROBED, &[]).await?.try_get::<_, bool>(0)? {
        other.batch_execute(PROBE).await?;
    }
    Ok(())
}

fn one_line(query: &str) -> String {
    let line = query.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_shown_in_one_short_line() {
        assert_eq!(one_line("SELECT 1\n   FROM x"), "SELECT 1 FROM x");
        assert_eq!(one_line(&"ä".repeat(300)).chars().count(), 100);
    }
}
