//! The suite on a server and on a cluster, with fast paths and without.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use ff_backend_valkey::ValkeyStore;
use ff_conformance::engines::{Breakage, clock, instance};
use ff_conformance::{Harness, Instance, run_trials, trials};
use ff_engine::Engine;
use support::{CLUSTER_OF_ONE, CLUSTER_OF_SHARDS, FAST, Form, GENERAL};

struct ValkeyHarness(Form);

const BREAKAGE: Breakage<ValkeyStore> = Breakage {
    damage: |store, key| Box::pin(async move { store.damage(key).await.expect("the record can be damaged") }),
    lose_index_entries: |store, key| {
        Box::pin(async move { store.lose_index_entries(key).await.expect("the entries can be lost") })
    },
};

#[async_trait]
impl Harness for ValkeyHarness {
    type Backend = Engine<ValkeyStore>;

    async fn open(&self) -> Instance<Self::Backend> {
        let clock = clock();
        let store = support::connect(&support::fresh_prefix(), Arc::new(clock.clone()), self.0).await;
        instance(store.expect("a fresh store opens"), clock, BREAKAGE, ()).await
    }
}

fn main() -> ExitCode {
    let mut all = trials("fast::", ValkeyHarness(FAST));
    all.extend(trials("general::", ValkeyHarness(GENERAL)));
    all.extend(trials("cluster::", ValkeyHarness(CLUSTER_OF_SHARDS)));
    all.extend(trials("cluster_of_one::", ValkeyHarness(CLUSTER_OF_ONE)));
    run_trials(all)
}
