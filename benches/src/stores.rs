//! What is measured: a store, and the yardstick it is compared with.

mod memory;
mod sqlite;

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use ff_core::backend::EngineBackend;
use ff_engine::store::Store;
use ff_engine::{Engine, TimerOptions, Timers};

use crate::disk::Scratch;
use crate::settings::{Options, StoreKind};
use crate::yardsticks::Yardstick;

/// A store under measurement.
#[async_trait]
pub trait Subject: Send + Sync {
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
}

/// A backend and the files it lives on, which go after it.
pub struct Opened {
    /// The public interface.
    pub backend: Arc<dyn EngineBackend>,
    timers: Box<dyn Fn() -> Timers + Send + Sync>,
    _files: Option<Scratch>,
}

impl Opened {
    fn new<S: Store>(engine: Engine<S>, files: Option<Scratch>) -> Self {
        let engine = Arc::new(engine);
        let backend = Arc::clone(&engine) as Arc<dyn EngineBackend>;
        let timers = Box::new(move || Timers::start(Arc::clone(&engine), TimerOptions::default()));
        Self { backend, timers, _files: files }
    }

    /// Starts its timers, with the settings that everybody has.
    pub fn start_timers(&self) -> Timers {
        (self.timers)()
    }
}

/// The store that was asked for.
pub fn subject(options: &Options) -> Result<Box<dyn Subject>> {
    Ok(match options.store {
        StoreKind::Memory => Box::new(memory::Memory),
        StoreKind::Sqlite => Box::new(sqlite::Sqlite::new(options)?),
    })
}
