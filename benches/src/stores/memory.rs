//! The model store: what the engine itself costs.

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use ff_engine::clock::SystemClock;
use ff_engine::memory::MemoryStore;
use ff_engine::{Engine, Settings};

use super::{Opened, Subject};

/// Engines on the memory store.
pub struct Memory;

#[async_trait]
impl Subject for Memory {
    async fn open(&self) -> Result<Opened> {
        let store = MemoryStore::new(Arc::new(SystemClock::default()));
        let backend = Engine::open(store, Settings::default()).await?;
        Ok(Opened::new(backend, ()))
    }
}
