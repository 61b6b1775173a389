//! One operation's transaction: it reads what the batch knows, and keeps its writes to itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use ff_core::backend::layer::BoxFuture;
use ff_core::error::BugKind;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::event::Event;
use ff_engine::index::{Bounds, Index, Listed, merge_listed};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;
use ff_engine::store::{Reach, Tx};
use futures_util::future::try_join_all;

use super::batch::{Batch, Decision, stored_key};
use super::changes;
use crate::address::{Address, Satellite};
use crate::indexes::Place;
use crate::tables::{self, Along, Beside, Entered};

pub(super) struct PostgresTx {
    batch: Arc<Batch>,
    reach: Reach,
    decision: Decision,
}

impl PostgresTx {
    pub(super) fn new(batch: Arc<Batch>, reach: Reach) -> Self {
        Self { batch, reach, decision: Decision::default() }
    }

    pub(super) fn into_decision(self) -> Decision {
        self.decision
    }

    /// Whether it changes nothing, because of something that is only known: it may have overlooked what there is to do.
    pub(super) fn may_have_overlooked(&self) -> bool {
        self.decision.saw_mirror && self.decision.overlay.changes.is_empty()
    }

    /// Learns everything about keys that is stored.
    pub(super) async fn prepare<'k>(&self, keys: impl Iterator<Item = &'k Key> + Clone) -> Result<()> {
        self.batch.know(keys.clone().map(Address::of)).await?;
        self.batch.know(self.batch.own_rows(keys)).await
    }

    fn stands_beside(&self, key: &Key) -> bool {
        let row = |id| self.batch.fact(&Address::Execution(id));
        Satellite::of(key)
            .is_some_and(|(id, satellite)| matches!(tables::beside(row(id).as_deref(), satellite), Beside::Held(_)))
    }

    /// Learns what its writes take the place of.
    pub(super) async fn prepare_writes(&self) -> Result<()> {
        let changed = || self.decision.overlay.changes.keys().filter(|key| !self.batch.is_of_newborn(key));
        self.prepare(changed().filter(|key| changes::replaces(key))).await?;
        // A new row must not hide what was stored beside it without one.
        let new_row = |key: &Key| match key.name {
            Name::Execution(id) if self.batch.fact(&Address::Execution(id)).is_none() => Some(id),
            _ => None,
        };
        let beside: Vec<Key> =
            changed().filter_map(new_row).flat_map(|id| Satellite::ALL.map(|satellite| satellite.key(id))).collect();
        self.prepare(beside.iter()).await
    }

    async fn fetch(&mut self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let mut missing = Vec::new();
        loop {
            let found = self.known(keys, &mut missing)?;
            if missing.is_empty() {
                return Ok(found);
            }
            self.batch.know(std::mem::take(&mut missing)).await?;
        }
    }

    fn known(&mut self, keys: &[Key], missing: &mut Vec<Address>) -> Result<Vec<Option<Record>>> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(match self.own(key) {
                Some(change) => change,
                None => {
                    self.decision.keys.push(key.clone());
                    self.batch.look(key, missing)?
                }
            });
        }
        Ok(found)
    }

    /// What this operation itself wants a key to hold, if it wants anything.
    fn own(&self, key: &Key) -> Option<Option<Record>> {
        match stored_key(key) {
            Some(execution) => Some(self.decision.overlay.changes.get(&execution)?.clone().map(Record::ownership)),
            None => self.decision.overlay.changes.get(key).cloned(),
        }
    }

    /// Own writes over those that were decided before.
    fn overlay(&self) -> Overlay {
        let mut changes: BTreeMap<Key, Option<Record>> = self
            .batch
            .with_accepted(|accepted| accepted.changes.each().map(|(key, change)| (key, change.new.clone())).collect());
        changes.extend(self.decision.overlay.changes.clone());
        Overlay { changes, events: Vec::new() }
    }

    async fn scan(&mut self, index: &Index, bounds: &Bounds) -> Result<Vec<Record>> {
        let Some(owner) = index.owner() else { return Err(EngineError::Bug(BugKind::DanglingReference)) };
        // Its owner first: a range that is read later than the owner's version is at least as new.
        self.prepare(std::iter::once(&owner)).await?;
        self.decision.ranges.insert(index.clone());
        let overlay = self.overlay();
        let found = if self.batch.is_newborn(&Address::of(&owner)) {
            Vec::new()
        } else {
            if self.batch.stored(&owner)?.is_none() {
                self.batch.read_unowned(owner.partition);
            }
            self.entered(index, &overlay.widen(bounds)).await?
        };
        let mut records = Vec::with_capacity(found.len());
        for Entered { position, key, .. } in found {
            self.decision.keys.push(key.clone());
            records.extend(self.batch.stored(&key)?.map(|record| (position, record)));
        }
        Ok(overlay.merge(index, bounds, records))
    }

    /// What stands in an index, with the records known.
    async fn entered(&self, index: &Index, bounds: &Bounds) -> Result<Vec<Entered>> {
        let mut page = self.batch.page(index, bounds).await?;
        if let Place::Keys(range) = Place::of(index)
            && let Some((position, key)) = range.first
            && bounds.contains(&position)
        {
            self.prepare(std::iter::once(&key)).await?;
            if self.stands_beside(&key) {
                let at = if bounds.reverse { page.len() } else { 0 };
                page.insert(at, Entered { position, key, along: Along::Nothing });
                page.truncate(bounds.limit);
            }
        }
        self.prepare(page.iter().map(|entered| &entered.key)).await?;
        Ok(page)
    }

    async fn look_up(&mut self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let lists = match indexes {
            [index] => vec![self.listed(index, bounds).await?],
            _ => try_join_all(indexes.iter().map(|index| self.listed(index, bounds))).await?,
        };
        self.decision.saw_mirror |= lists.iter().any(|(_, is_mirrored)| *is_mirrored);
        Ok(merge_listed(lists.into_iter().map(|(listed, _)| listed).collect(), bounds))
    }

    /// What stands at the head of an index, and whether that is only known, not read.
    async fn listed(&self, index: &Index, bounds: &Bounds) -> Result<(Vec<Listed>, bool)> {
        let (heads, is_mirrored) = self.batch.heads(index, bounds).await?;
        let rows = heads.iter().map(|head| Address::of(&head.key));
        if is_mirrored {
            self.batch.know_listed(rows).await?;
        } else {
            // No commit makes sure of what is listed.
            self.batch.know_anew(rows).await?;
        }
        self.prepare(heads.iter().map(|head| &head.key)).await?;
        let mut listed = Vec::with_capacity(heads.len());
        for Entered { position, key, .. } in heads {
            if let Some(record) = self.batch.stored(&key)? {
                listed.push(Listed { index: index.clone(), position, record });
            }
        }
        Ok((listed, is_mirrored))
    }
}

impl Tx for PostgresTx {
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
