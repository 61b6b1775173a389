//! Where several processes of a test find their store.

use std::process::Command;
use std::sync::Arc;

use ff_backend_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use ff_core::Result;
use ff_engine::clock::Clock;
use ff_engine::store::{Inspect, Store};
use ff_engine::{Engine, Settings};
use libtest_mimic::Failed;
use serde::Serialize;

/// Set for a process that a test starts: its orders.
pub(crate) const ORDERS: &str = "FF_LOAD_ORDERS";

/// A store.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Site {
    pub(crate) url: String,
    pub(crate) schema: String,
}

impl Site {
    pub(crate) async fn open(&self, clock: Option<Arc<dyn Clock>>) -> Result<PostgresBackend> {
        let options = PostgresOptions::new(&self.url)?.schema(&self.schema)?;
        let options = if let Some(clock) = clock { options.clock(clock) } else { options };
        Engine::open(PostgresStore::connect(options).await?, Settings::default()).await
    }
}

/// This program once more, with orders.
pub(crate) fn command(orders: &impl Serialize) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ORDERS, serde_json::to_string(orders)?);
    Ok(command)
}

pub(crate) fn finish<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Every record stands in the indexes that it declares, and nothing else does.
pub(crate) async fn has_sound_indexes(store: &PostgresStore) -> Result<(), String> {
    let records = store.records().await.map_err(|error| error.to_string())?;
    let partitions: std::collections::BTreeSet<_> = records.iter().map(|record| record.key().partition).collect();
    for (number, partition) in partitions.into_iter().enumerate() {
        let looked = store.reindex_in_round(partition, number == 0).await;
        match looked.map_err(|error| error.to_string())? {
            (_, 0) => {}
            (_, repaired) => return Err(format!("{repaired} index entries of {partition:?} were wrong")),
        }
    }
    Ok(())
}
