//! The Valkey that a run starts for itself, prefixes of keys on it, and plain connections to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ff_backend_valkey::redis::aio::MultiplexedConnection;
use ff_backend_valkey::redis::{AsyncConnectionConfig, Client, cmd, pipe};
use ff_test_servers::valkey::{ValkeyServer, ValkeyServerOptions};

use crate::disk::require_disk;
use crate::process;
use crate::stores::Busy;

/// How long an answer may take: keys of an earlier measurement are removed meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys that are removed at once.
const KEYS_AT_ONCE: usize = 10_000;

/// A server that writes to disk every second; gone when dropped.
pub struct Server {
    process: ValkeyServer,
    version: String,
    file_system: String,
}

impl Server {
    /// Starts one, on a disk.
    pub async fn start() -> Result<Self> {
        let options = ValkeyServerOptions::default().durable(true).setting("appendfsync", "everysec");
        let process = tokio::task::spawn_blocking(|| ValkeyServer::start(options)).await??;
        let file_system =
            require_disk(process.directory()).context("choose another folder for temporary files with TMPDIR")?;
        let told = process.ask(&["CONFIG", "GET", "append*"])?;
        ensure!(told.contains("appendonly\nyes") && told.contains("appendfsync\neverysec"), "{told}");
        let about = process.ask(&["INFO", "server"])?;
        let field = |name: &str| about.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let version = match (field("valkey_version:"), field("redis_version:")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version.unwrap_or("of unknown version")),
        };
        process::count_also(field("process_id:").context("the server names no process")?.parse()?);
        Ok(Self { process, version, file_system })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        self.process.url()
    }

    /// Its name and version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The kind of file system that holds its files.
    pub fn file_system(&self) -> &str {
        &self.file_system
    }

    /// What others ask of the server within this time, the most frequent first. What a function asks counts as well.
    pub async fn count(&self, time: Duration) -> Result<Vec<Busy>> {
        let before = self.asked()?;
        tokio::time::sleep(time).await;
        let mut busy: Vec<Busy> = self
            .asked()?
            .into_iter()
            .map(|(query, calls)| Busy { calls: calls - before.get(&query).copied().unwrap_or(0), query })
            .filter(|busy| busy.calls > 0 && busy.query != "info")
            .collect();
        busy.sort_by(|a, b| (b.calls, &a.query).cmp(&(a.calls, &b.query)));
        Ok(busy)
    }

    /// How often each command ran so far.
    fn asked(&self) -> Result<BTreeMap<String, i64>> {
        let told = self.process.ask(&["INFO", "commandstats"])?;
        let line = |line: &str| {
            let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), numbers.split(',').next()?.parse().ok()?))
        };
        Ok(told.lines().filter_map(line).collect())
    }
}

/// Prefixes of keys, each for one measurement.
#[derive(Clone, Debug)]
pub struct Prefixes {
    url: String,
    made: Arc<AtomicU32>,
    left: Arc<Mutex<Vec<String>>>,
}

impl Prefixes {
    /// On this server.
    pub fn new(url: String) -> Self {
        Self { url, made: Arc::default(), left: Arc::default() }
    }

    /// The server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A prefix that nobody else has. Keys whose prefixes were dropped go first, so that nobody is measured while they do.
    pub async fn fresh(&self) -> Result<Prefix> {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        let mut connection = connect(&self.url).await?;
        for prefix in left {
            remove(&mut connection, &prefix).await?;
        }
        let name = format!("bench-{}-", self.made.fetch_add(1, Ordering::Relaxed));
        Ok(Prefix { name, left: Arc::clone(&self.left) })
    }
}

async fn remove(connection: &mut MultiplexedConnection, prefix: &str) -> Result<()> {
    let mut cursor = 0_u64;
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{{{prefix}*")).arg("COUNT").arg(KEYS_AT_ONCE);
        let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(connection).await?;
        if !keys.is_empty() {
            pipe().cmd("DEL").arg(keys).ignore().exec_async(connection).await?;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

/// What keys of one measurement begin with, behind a brace.
#[derive(Debug)]
pub struct Prefix {
    name: String,
    left: Arc<Mutex<Vec<String>>>,
}

impl Prefix {
    /// The prefix.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }
}

/// A connection of its own.
pub async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    Ok(Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}
