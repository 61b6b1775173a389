//! What is measured: a store, and the yardstick it is compared with.

pub mod memory;
mod postgres;
mod sqlite;
mod valkey;
mod valkey_cluster;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use ff_core::backend::EngineBackend;
use ff_engine::store::Store;
use ff_engine::{Engine, TimerOptions, Timers};
use serde::Serialize;

use crate::settings::{Options, Scenario, StoreKind};
use crate::yardsticks::Yardstick;

/// A store under measurement.
#[async_trait]
pub trait Subject: Send + Sync {
    /// What can be measured on it.
    fn offers(&self, scenario: Scenario) -> bool {
        match scenario {
            Scenario::Bare => self.yardstick().is_some(),
            Scenario::Foreign => self.postgres().is_some(),
            Scenario::Idle => self.counter().is_some(),
            _ => true,
        }
    }

    /// A backend without any work, with files of its own.
    async fn open(&self) -> Result<Opened>;

    /// The database underneath, with its version.
    fn engine(&self) -> Option<String> {
        None
    }

    /// The kind of file system that holds its files.
    fn file_system(&self) -> Option<String> {
        None
    }

    /// The queue written by hand on the same store.
    fn yardstick(&self) -> Option<&dyn Yardstick> {
        None
    }

    /// Where others connect to the same server; none where there is no such server.
    fn postgres(&self) -> Option<&str> {
        None
    }

    /// What counts how much is asked of a server; none where there is no server.
    fn counter(&self) -> Option<&dyn Counter> {
        None
    }

    /// Brings to disk what was done so far, so that it does not cost those who are measured next.
    async fn settle(&self) -> Result<()> {
        Ok(())
    }
}

/// Counts what is asked of a server.
#[async_trait]
pub trait Counter: Send + Sync {
    /// What others ask of it within this time, the most frequent first.
    async fn count(&self, time: Duration) -> Result<Vec<Busy>>;
}

/// What is asked of a server.
#[derive(Clone, Debug, Serialize)]
pub struct Busy {
    /// The beginning of its text, in one line.
    pub query: String,
    /// How often.
    pub calls: i64,
}

/// A backend and what it lives on, which goes after it.
pub struct Opened {
    /// The public interface.
    pub backend: Arc<dyn EngineBackend>,
    timers: Box<dyn Fn() -> Timers + Send + Sync>,
    _ground: Box<dyn Any + Send + Sync>,
}

impl Opened {
    fn new<S: Store>(engine: Engine<S>, ground: impl Any + Send + Sync) -> Self {
        let engine = Arc::new(engine);
        let backend = Arc::clone(&engine) as Arc<dyn EngineBackend>;
        let timers = Box::new(move || Timers::start(Arc::clone(&engine), TimerOptions::default()));
        Self { backend, timers, _ground: Box::new(ground) }
    }

    /// Starts its timers, with the settings that everybody has.
    pub fn start_timers(&self) -> Timers {
        (self.timers)()
    }
}

/// The store that was asked for.
pub async fn subject(options: &Options) -> Result<Box<dyn Subject>> {
    Ok(match options.store {
        StoreKind::Memory => Box::new(memory::Memory),
        StoreKind::Sqlite => Box::new(sqlite::Sqlite::new(options)?),
        StoreKind::Postgres => Box::new(postgres::Postgres::start(options).await?),
        StoreKind::Valkey => Box::new(valkey::Valkey::start(options).await?),
        StoreKind::ValkeyCluster => Box::new(valkey_cluster::ValkeyCluster::start(options).await?),
    })
}
