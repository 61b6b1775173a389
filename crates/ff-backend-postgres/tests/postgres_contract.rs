//! The contract of stores on Postgres: with and without fast paths and the journal, and on a pool of the caller.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use ff_backend_postgres::deadpool_postgres::{Manager, Pool};
use ff_backend_postgres::{PostgresOptions, PostgresStore};
use ff_conformance::{run_trials, store_contract};
use ff_core::TimestampMs;
use ff_engine::clock::{Clock, ManualClock};
use support::{FAST, Form, GENERAL, SETTLING};
use tokio_postgres::NoTls;

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::at(TimestampMs(1_000)))
}

async fn open(form: Form) -> PostgresStore {
    let schema = support::schema().keep();
    support::connect(&schema, clock(), form).await.expect("a fresh store opens")
}

async fn open_on_pool() -> PostgresStore {
    let manager = Manager::new(support::server().url().parse().expect("a URL"), NoTls);
    let pool = Pool::builder(manager).max_size(4).build().expect("a pool");
    let options = PostgresOptions::without_url().schema(&support::schema().keep()).expect("a name");
    PostgresStore::from_pool(pool, options.clock(clock())).await.expect("a fresh store opens")
}

fn main() -> ExitCode {
    let mut all = store_contract::trials("fast::", || open(FAST));
    all.extend(store_contract::trials("general::", || open(GENERAL)));
    all.extend(store_contract::trials("settling::", || open(SETTLING)));
    all.extend(store_contract::trials("pool::", open_on_pool));
    run_trials(all)
}
