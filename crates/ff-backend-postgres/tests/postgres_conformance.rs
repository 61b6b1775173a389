//! The suite on Postgres, with fast paths and the journal, and without.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use ff_backend_postgres::PostgresStore;
use ff_conformance::engines::{Breakage, clock, instance};
use ff_conformance::{Harness, Instance, run_trials, trials};
use ff_engine::Engine;
use support::{FAST, Form, GENERAL};

struct PostgresHarness(Form);

const BREAKAGE: Breakage<PostgresStore> = Breakage {
    damage: |store, key| Box::pin(async move { store.damage(key).await.expect("the record can be damaged") }),
    lose_index_entries: |store, key| {
        Box::pin(async move { store.lose_index_entries(key).await.expect("the entries can be lost") })
    },
};

#[async_trait]
impl Harness for PostgresHarness {
    type Backend = Engine<PostgresStore>;

    async fn open(&self) -> Instance<Self::Backend> {
        let (clock, schema) = (clock(), support::schema());
        let store = support::connect(schema.name(), Arc::new(clock.clone()), self.0).await;
        instance(store.expect("a fresh store opens"), clock, BREAKAGE, schema).await
    }
}

fn main() -> ExitCode {
    let mut all = trials("fast::", PostgresHarness(FAST));
    all.extend(trials("general::", PostgresHarness(GENERAL)));
    run_trials(all)
}
