//! The store on a cluster.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use async_trait::async_trait;
use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_engine::{Engine, Settings};
use ff_test_servers::valkey::{ValkeyCluster as Servers, ValkeyServerOptions};

use super::{Opened, Subject};
use crate::process;
use crate::settings::Options;

/// Primaries that the work spreads over.
const PRIMARIES: usize = 3;

/// Engines with prefixes of their own on a cluster that was started for this run. It has no yardstick: a bare queue lies in one slot.
pub struct ValkeyCluster {
    fast_paths: bool,
    servers: Servers,
    opened: AtomicU32,
}

impl ValkeyCluster {
    /// Starts a cluster without replicas, which writes to disk every second.
    pub async fn start(options: &Options) -> Result<Self> {
        let settings = ValkeyServerOptions::default().durable(true).setting("appendfsync", "everysec");
        let servers = tokio::task::spawn_blocking(move || Servers::start(&settings, PRIMARIES, 0)).await??;
        for node in servers.nodes() {
            let about = node.ask(&["INFO", "server"])?;
            if let Some(id) = about.lines().find_map(|line| line.strip_prefix("process_id:")) {
                process::count_also(id.trim().parse()?);
            }
        }
        Ok(Self { fast_paths: !options.no_fast_paths, servers, opened: AtomicU32::new(0) })
    }
}

#[async_trait]
impl Subject for ValkeyCluster {
    async fn open(&self) -> Result<Opened> {
        let prefix = format!("bench-{}", self.opened.fetch_add(1, Ordering::Relaxed));
        let options = ValkeyOptions::new(&self.servers.url())?.prefix(&prefix)?.fast_paths(self.fast_paths);
        let engine = Engine::open(ValkeyStore::connect(options).await?, Settings::default()).await?;
        Ok(Opened::new(engine, ()))
    }

    fn engine(&self) -> Option<String> {
        Some(format!("{PRIMARIES} primaries"))
    }
}
