//! One attempt at a commit.

use std::collections::HashMap;

use ff_core::backend::layer::BoxFuture;
use ff_core::error::BugKind;
use ff_core::{EngineError, Result, TimestampMs};

use crate::event::Event;
use crate::index::{Bounds, Index, Listed, Position};
use crate::key::Key;
use crate::overlay::Overlay;
use crate::records::Record;
use crate::store::{Reach, Tx};

use super::MemoryStore;
use super::state::ABSENT;

/// What a transaction read, and what it wants to write.
#[derive(Default)]
pub(super) struct Writes {
    pub(super) read: HashMap<Key, u64>,
    pub(super) ranges: HashMap<Key, u64>,
    pub(super) overlay: Overlay,
}

pub(super) struct MemoryTx<'s> {
    store: &'s MemoryStore,
    now: TimestampMs,
    reach: Reach,
    seen: HashMap<Key, Option<Record>>,
    writes: Writes,
}

impl<'s> MemoryTx<'s> {
    pub(super) fn new(store: &'s MemoryStore, now: TimestampMs, reach: Reach) -> Self {
        Self { store, now, reach, seen: HashMap::new(), writes: Writes::default() }
    }

    pub(super) fn preload(&mut self, keys: &[Key]) -> Result<()> {
        self.fetch(keys).map(drop)
    }

    pub(super) fn into_writes(self) -> Writes {
        self.writes
    }

    fn fetch(&mut self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let state = self.store.lock();
        keys.iter()
            .map(|key| {
                if let Some(change) = self.writes.overlay.changes.get(key) {
                    return Ok(change.clone());
                }
                if let Some(record) = self.seen.get(key) {
                    return Ok(record.clone());
                }
                let found = state.get(key)?;
                let version = found.as_ref().map_or(ABSENT, |(version, _)| *version);
                self.writes.read.insert(key.clone(), version);
                let record = found.map(|(_, record)| record);
                self.seen.insert(key.clone(), record.clone());
                Ok(record)
            })
            .collect()
    }

    fn scan(&mut self, index: &Index, bounds: &Bounds) -> Result<Vec<Record>> {
        let Some(owner) = index.owner() else {
            return Err(EngineError::Bug(BugKind::DanglingReference));
        };
        let wider = self.writes.overlay.widen(bounds);
        let mut found: Vec<(Position, Record)> = Vec::new();
        {
            let state = self.store.lock();
            let version = state.range_version(&owner);
            self.writes.ranges.entry(owner).or_insert(version);
            for (position, version, record) in state.range(index, &wider)? {
                let key = record.key();
                if self.writes.overlay.changes.contains_key(&key) {
                    continue;
                }
                let seen = self.seen.entry(key.clone()).or_insert_with(|| {
                    self.writes.read.insert(key, version);
                    Some(record)
                });
                if let Some(record) = seen.clone() {
                    found.push((position, record));
                }
            }
        }
        Ok(self.writes.overlay.merge(index, bounds, found))
    }
}

impl Tx for MemoryTx<'_> {
    fn now(&self) -> TimestampMs {
        self.now
    }

    fn load<'a>(&'a mut self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Option<Record>>>> {
        let found = self.fetch(keys);
        Box::pin(std::future::ready(found))
    }

    fn range<'a>(&'a mut self, index: &'a Index, bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Record>>> {
        let found = self.scan(index, bounds);
        Box::pin(std::future::ready(found))
    }

    fn list<'a>(&'a mut self, indexes: &'a [Index], bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Listed>>> {
        let found = match self.reach {
            Reach::Home => Err(EngineError::Bug(BugKind::DanglingReference)),
            Reach::Everywhere => self.store.lock().list(indexes, bounds),
        };
        Box::pin(std::future::ready(found))
    }

    fn put_record(&mut self, record: Record) {
        self.writes.overlay.changes.insert(record.key(), Some(record));
    }

    fn delete(&mut self, key: Key) {
        self.writes.overlay.changes.insert(key, None);
    }

    fn emit(&mut self, event: Event) {
        self.writes.overlay.events.push(event);
    }
}
