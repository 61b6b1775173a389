//! A store of any kind with trouble around it, and the processes that serve it.

use std::rc::Rc;

use async_trait::async_trait;
use ff_core::backend::EngineBackend;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::event::EventPage;
use ff_engine::index::Index;
use ff_engine::records::Record;
use ff_engine::store::{Inspect, Store};
use ff_engine::{DueReport, Engine, Settings};

use crate::trouble::Trouble;
use crate::troubled_store::TroubledStore;

/// What a process offers: the whole contract, and its timers.
#[async_trait]
pub(crate) trait Serves: EngineBackend {
    /// Runs what is due.
    async fn run_due(&self, now: TimestampMs, limit: usize) -> Result<DueReport>;
}

#[async_trait]
impl<S: Store> Serves for Engine<S> {
    async fn run_due(&self, now: TimestampMs, limit: usize) -> Result<DueReport> {
        Engine::run_due(self, now, limit).await
    }
}

/// A process that serves the deployment.
pub(crate) type Process = Rc<dyn Serves>;

/// What the simulation needs of a store: processes on it, and looks at it past all trouble.
#[async_trait(?Send)]
pub(crate) trait Deployment {
    /// The tag in its handles.
    fn tag(&self) -> BackendTag;

    /// The trouble it is in.
    fn trouble(&self) -> &Trouble;

    /// Starts a process.
    async fn open(&self, settings: Settings) -> Result<Process>;

    /// Every record.
    async fn records(&self) -> Result<Vec<Record>>;

    /// How many entries stand in an index.
    async fn count(&self, index: &Index) -> Result<u64>;

    /// Events after a cursor.
    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage>;

    /// Repairs the index entries of a partition; says how many there were to repair.
    async fn reindex(&self, partition: Partition) -> Result<u32>;
}

#[async_trait(?Send)]
impl<S: Inspect> Deployment for TroubledStore<S> {
    fn tag(&self) -> BackendTag {
        S::TAG
    }

    fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    async fn open(&self, settings: Settings) -> Result<Process> {
        Ok(Rc::new(Engine::open(self.clone(), settings).await?))
    }

    async fn records(&self) -> Result<Vec<Record>> {
        Inspect::records(&*self.store).await
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        self.store.count(index).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        self.store.events(after, limit).await
    }

    async fn reindex(&self, partition: Partition) -> Result<u32> {
        Ok(self.store.reindex(partition).await?.1)
    }
}
