//! The contract of stores on SQLite, in a file and in memory.

use std::process::ExitCode;
use std::sync::Arc;

use ff_backend_sqlite::{SqliteOptions, SqliteStore};
use ff_conformance::{run_trials, store_contract};
use ff_core::TimestampMs;
use ff_engine::clock::ManualClock;

async fn open(options: SqliteOptions) -> SqliteStore {
    let clock = ManualClock::at(TimestampMs(1_000));
    SqliteStore::open(options.clock(Arc::new(clock))).await.expect("a fresh store opens")
}

fn main() -> ExitCode {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_owned();
    let mut all = store_contract::trials("memory::", || open(SqliteOptions::memory()));
    all.extend(store_contract::trials("file::", move || {
        let file = tempfile::Builder::new().suffix(".db").tempfile_in(&path).expect("a file");
        open(SqliteOptions::file(file.into_temp_path().keep().expect("a path")))
    }));
    run_trials(all)
}
