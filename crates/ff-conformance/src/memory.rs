//! The harness of the model store.

use std::sync::Arc;

use async_trait::async_trait;
use ff_engine::Engine;
use ff_engine::memory::MemoryStore;

use crate::engines::{Breakage, clock, instance};
use crate::harness::{Harness, Instance};

/// Engines on the memory store, each with a clock of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryHarness;

const BREAKAGE: Breakage<MemoryStore> = Breakage {
    damage: |store, key| {
        store.damage(key);
        Box::pin(std::future::ready(()))
    },
    lose_index_entries: |store, key| {
        store.lose_index_entries(&key);
        Box::pin(std::future::ready(()))
    },
};

#[async_trait]
impl Harness for MemoryHarness {
    type Backend = Engine<MemoryStore>;

    async fn open(&self) -> Instance<Self::Backend> {
        let clock = clock();
        let store = MemoryStore::new(Arc::new(clock.clone()));
        instance(store, clock, BREAKAGE, ()).await
    }
}
