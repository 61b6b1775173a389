//! The contract of stores on Postgres, with and without fast paths.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use ff_backend_postgres::PostgresStore;
use ff_conformance::{run_trials, store_contract};
use ff_core::TimestampMs;
use ff_engine::clock::ManualClock;

async fn open(fast_paths: bool) -> PostgresStore {
    let clock = Arc::new(ManualClock::at(TimestampMs(1_000)));
    let schema = support::schema().keep();
    support::connect(&schema, clock, fast_paths).await.expect("a fresh store opens")
}

fn main() -> ExitCode {
    let mut all = store_contract::trials("fast::", || open(true));
    all.extend(store_contract::trials("general::", || open(false)));
    run_trials(all)
}
