//! The model store: ordered maps with the same commit rule as every other store.

mod state;
mod tx;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::error::ContentionKind;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result, TimestampMs};

use crate::alarms::DueNews;
use crate::clock::Clock;
use crate::event::{Event, EventPage};
use crate::index::{Bounds, Index, Listed, Position, Topic};
use crate::key::Key;
use crate::records::Record;
use crate::store::{Inspect, Op, Store};
use crate::topics::Topics;

use state::{News, State};
use tx::MemoryTx;

/// How often a conflicting operation runs again before its caller is told.
const ATTEMPTS_MAX: u32 = 100;

/// Records in memory; gone with the process.
pub struct MemoryStore {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    topics: Arc<Topics>,
    spans_partitions: bool,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store on a clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { state: Mutex::new(State::default()), clock, topics: Arc::default(), spans_partitions: false }
    }

    /// The same store, whose transactions look at all partitions.
    #[must_use]
    pub const fn spanning_partitions(mut self) -> Self {
        self.spans_partitions = true;
        self
    }

    /// Every record, as it is now: for checkers.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.lock().records()
    }

    /// Every event that was not trimmed, oldest first: for checkers.
    #[must_use]
    pub fn event_log(&self) -> Vec<Event> {
        self.lock().event_log()
    }

    /// How many commits there were; unchanged means that nothing changed.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.lock().revision()
    }

    /// Keys of records written or deleted after a revision: for checkers that look at changes only.
    #[must_use]
    pub fn changed_since(&self, revision: u64) -> Vec<Key> {
        self.lock().changed_since(revision)
    }

    /// Makes a record unreadable, as a damaged disk would: every load of it answers `Corruption`.
    pub fn damage(&self, key: Key) {
        self.lock().damage(key);
    }

    /// Removes the index entries of a record behind its back, as a lost write would.
    pub fn lose_index_entries(&self, key: &Key) {
        self.lock().lose_index_entries(key);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, news: &News) {
        news.topics.iter().for_each(|topic| self.topics.wake(topic));
        if let Some(at) = news.due_at {
            self.topics.wake_due(at);
        }
    }
}

impl Store for MemoryStore {
    const TAG: BackendTag = BackendTag::Memory;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        for _ in 0..ATTEMPTS_MAX {
            let now = self.lock().observe(self.clock.now());
            let mut tx = MemoryTx::new(self, now, op.reach());
            tx.preload(&op.prefetch())?;
            let out = op.run(&mut tx).await?;
            let commit = self.lock().commit(tx.into_writes());
            if let Some(news) = commit {
                self.notify(&news);
                return Ok(out);
            }
            tokio::task::yield_now().await;
        }
        Err(EngineError::Contention(ContentionKind::RetryExhausted))
    }

    fn spans_partitions(&self) -> bool {
        self.spans_partitions
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let state = self.lock();
        keys.iter().map(|key| state.get(key).map(|found| found.map(|(_, record)| record))).collect()
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        self.lock().list(indexes, bounds)
    }

    async fn keys(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
        Ok(self.lock().keys(index, bounds))
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        Ok(self.lock().count(index))
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        self.lock().events(after, limit)
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        Ok(self.lock().trim_events(before, limit))
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        Ok(self.lock().reindex(partition))
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.topics.listen(topic).0
    }

    fn listen_due(&self) -> DueNews {
        self.topics.listen_due().0
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        Ok(self.lock().observe(self.clock.now()))
    }
}

impl Inspect for MemoryStore {
    async fn records(&self) -> Result<Vec<Record>> {
        Ok(self.lock().records())
    }

    async fn event_log(&self) -> Result<Vec<Event>> {
        Ok(self.lock().event_log())
    }
}
