//! The contract of stores on a server and on a cluster.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use ff_backend_valkey::ValkeyStore;
use ff_conformance::{run_trials, store_contract};
use ff_core::TimestampMs;
use ff_engine::clock::ManualClock;
use support::{CLUSTER_OF_ONE, CLUSTER_OF_SHARDS, FAST, Form, GENERAL};

async fn open(form: Form) -> ValkeyStore {
    let clock = Arc::new(ManualClock::at(TimestampMs(1_000)));
    support::connect(&support::fresh_prefix(), clock, form).await.expect("a fresh store opens")
}

fn main() -> ExitCode {
    let mut all = store_contract::trials("fast::", || open(FAST));
    all.extend(store_contract::trials("general::", || open(GENERAL)));
    all.extend(store_contract::trials("cluster::", || open(CLUSTER_OF_SHARDS)));
    all.extend(store_contract::trials("cluster_of_one::", || open(CLUSTER_OF_ONE)));
    run_trials(all)
}
