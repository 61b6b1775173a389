//! Where several processes of a test find their store.

use std::process::Command;
use std::sync::Arc;

use ff_core::Result;
use ff_engine::Engine;
use ff_engine::clock::Clock;
use ff_engine::store::Inspect;
use libtest_mimic::Failed;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Set for a process that a test starts: its orders.
const ORDERS: &str = "FF_LOAD_ORDERS";

/// A store that any process of a test can open.
pub trait Site: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What it opens.
    type Store: Inspect;

    /// Opens the store, with a clock in place of the server's.
    fn open(&self, clock: Option<Arc<dyn Clock>>) -> impl Future<Output = Result<Engine<Self::Store>>> + Send;
}

/// This program once more, with orders.
///
/// # Errors
/// When the program cannot be found.
pub fn command(orders: &impl Serialize) -> std::result::Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ORDERS, serde_json::to_string(orders)?);
    Ok(command)
}

/// What this process was told to do, if a test started it.
///
/// # Panics
/// For orders of another kind.
#[must_use]
pub fn orders<O: DeserializeOwned>() -> Option<O> {
    std::env::var(ORDERS).ok().map(|orders| serde_json::from_str(&orders).expect("orders"))
}

/// Runs to the end.
///
/// # Panics
/// When there are no threads left.
pub fn finish<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Every record stands in the indexes that it declares, and nothing else does.
///
/// # Errors
/// The first partition where that is not so.
pub async fn has_sound_indexes<S: Inspect>(store: &S) -> std::result::Result<(), String> {
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
