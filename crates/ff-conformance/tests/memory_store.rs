//! The contract of stores on the model store.

use std::process::ExitCode;
use std::sync::Arc;

use ff_conformance::{run_trials, store_contract};
use ff_core::TimestampMs;
use ff_engine::clock::ManualClock;
use ff_engine::memory::MemoryStore;

fn main() -> ExitCode {
    run_trials(store_contract::trials("", || async { MemoryStore::new(Arc::new(ManualClock::at(TimestampMs(1_000)))) }))
}
