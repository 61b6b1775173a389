//! One operation's transaction: it reads what the batch knows, and keeps its writes to itself.

use std::sync::Arc;

use ff_core::backend::layer::BoxFuture;
use ff_core::error::BugKind;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::event::Event;
use ff_engine::index::{Bounds, Index, Listed, merge_listed};
use ff_engine::key::Key;
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;
use ff_engine::store::{Reach, Tx};
use futures_util::future::try_join_all;

use super::batch::{Batch, Decision};
use crate::address::stored_key;
use crate::indexes;
use crate::tables::Entered;

pub(super) struct ValkeyTx {
    batch: Arc<Batch>,
    reach: Reach,
    decision: Decision,
}

impl ValkeyTx {
    pub(super) fn new(batch: Arc<Batch>, reach: Reach) -> Self {
        Self { batch, reach, decision: Decision::default() }
    }

    pub(super) fn into_decision(self) -> Decision {
        self.decision
    }

    /// Learns what will surely be asked for.
    pub(super) async fn prefetch(&self, keys: &[Key]) -> Result<()> {
        self.batch.know(keys.iter().map(stored_key)).await
    }

    /// Learns what its writes take the place of, where that makes a difference.
    pub(super) async fn prepare_writes(&self) -> Result<()> {
        let changed = self.decision.overlay.changes.keys();
        self.batch.know(changed.filter(|key| key.may_be_listed()).cloned()).await
    }

    async fn fetch(&mut self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let foreign: Vec<Key> = keys.iter().filter(|key| self.own(key).is_none()).cloned().collect();
        self.prefetch(&foreign).await?;
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(match self.own(key) {
                Some(change) => change,
                None => self.batch.look(key)?,
            });
        }
        self.decision.keys.extend(foreign);
        Ok(found)
    }

    /// What this operation itself wants a key to hold, if it wants anything.
    fn own(&self, key: &Key) -> Option<Option<Record>> {
        let stored = stored_key(key);
        let change = self.decision.overlay.changes.get(&stored)?.clone();
        Some(if stored == *key { change } else { change.map(Record::ownership) })
    }

    /// Own writes over those that were decided before.
    fn overlay(&self) -> Overlay {
        let mut overlay = self.batch.decided();
        overlay.changes.extend(self.decision.overlay.changes.clone());
        overlay
    }

    async fn scan(&mut self, index: &Index, bounds: &Bounds) -> Result<Vec<Record>> {
        let Some(owner) = index.owner() else { return Err(EngineError::Bug(BugKind::DanglingReference)) };
        let overlay = self.overlay();
        let mut found = Vec::new();
        if !self.batch.is_of_newborn(&owner) {
            let wider = overlay.widen(bounds);
            let page = self.batch.range(index, &wider).await?;
            self.decision.ranges.push((index.clone(), wider));
            self.decision.keys.extend(indexes::unlisted(index).map(|(_, key)| key));
            for Entered { position, key } in &page.entered {
                self.decision.keys.push(key.clone());
                found.extend(self.batch.stored(key)?.map(|record| (position.clone(), record)));
            }
        }
        Ok(overlay.merge(index, bounds, found))
    }

    async fn look_up(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let lists = try_join_all(indexes.iter().map(|index| self.listed(index, bounds))).await?;
        Ok(merge_listed(lists, bounds))
    }

    /// What stands at the head of an index.
    async fn listed(&self, index: &Index, bounds: &Bounds) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for Entered { position, key } in self.batch.heads(index, bounds).await? {
            if let Some(record) = self.batch.stored(&key)? {
                listed.push(Listed { index: index.clone(), position, record });
            }
        }
        Ok(listed)
    }
}

impl Tx for ValkeyTx {
    fn now(&self) -> TimestampMs {
        self.batch.now
    }

    fn load<'a>(&'a mut self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Option<Record>>>> {
        Box::pin(self.fetch(keys))
    }

    fn range<'a>(&'a mut self, index: &'a Index, bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(self.scan(index, bounds))
    }

    fn list<'a>(&'a mut self, indexes: &'a [Index], bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move {
            match self.reach {
                Reach::Home => Err(EngineError::Bug(BugKind::DanglingReference)),
                Reach::Everywhere => self.look_up(indexes, bounds).await,
            }
        })
    }

    fn put_record(&mut self, record: Record) {
        self.decision.overlay.changes.insert(record.key(), Some(record));
    }

    fn delete(&mut self, key: Key) {
        self.decision.overlay.changes.insert(key, None);
    }

    fn emit(&mut self, event: Event) {
        self.decision.overlay.events.push(event);
    }
}
