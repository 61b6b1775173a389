//! The suite on SQLite: in a file and in memory, with fast paths and many young executions, and without and with next to none.

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use ff_backend_sqlite::{SqliteOptions, SqliteStore};
use ff_conformance::engines::{Breakage, clock, instance};
use ff_conformance::{Harness, Instance, run_trials, trials};
use ff_engine::Engine;

struct SqliteHarness {
    in_file: bool,
    fast_paths: bool,
    /// How many executions stay young: a few, so that some have settled whenever anything happens, or as many as usual.
    young_max: Option<usize>,
}

const BREAKAGE: Breakage<SqliteStore> = Breakage {
    damage: |store, key| Box::pin(async move { store.damage(key).await.expect("the record can be damaged") }),
    lose_index_entries: |store, key| {
        Box::pin(async move { store.lose_index_entries(key).await.expect("the entries can be lost") })
    },
};

#[async_trait]
impl Harness for SqliteHarness {
    type Backend = Engine<SqliteStore>;

    async fn open(&self) -> Instance<Self::Backend> {
        let clock = clock();
        let directory = tempfile::tempdir().expect("a directory");
        let options =
            if self.in_file { SqliteOptions::file(directory.path().join("suite.db")) } else { SqliteOptions::memory() };
        let options = options.clock(Arc::new(clock.clone())).fast_paths(self.fast_paths);
        let options = match self.young_max {
            Some(young_max) => options.young_max(young_max),
            None => options,
        };
        let store = SqliteStore::open(options).await.expect("a fresh store opens");
        instance(store, clock, BREAKAGE, directory).await
    }
}

fn main() -> ExitCode {
    let mut all = Vec::new();
    for (place, in_file) in [("file", true), ("memory", false)] {
        for (ways, fast_paths) in [("fast", true), ("general", false)] {
            let young_max = (!fast_paths).then_some(1);
            all.extend(trials(&format!("{place}::{ways}::"), SqliteHarness { in_file, fast_paths, young_max }));
        }
    }
    run_trials(all)
}
