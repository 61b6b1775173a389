//! One operation's transaction: it reads what is stored, keeps its writes to itself, and applies them when it has decided.
//!
//! The writer runs one operation after another, so nothing it has read can change under it.

use std::collections::HashMap;

use ff_core::backend::layer::BoxFuture;
use ff_core::error::BugKind;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::codec::{encode_key, encode_record};
use ff_engine::event::Event;
use ff_engine::index::{Bounds, Entry, Index, Listed, Topic};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;
use ff_engine::store::{Reach, Tx};

use super::desk::Desk;
use crate::error::explain;
use crate::indexes::Place;
use crate::tables::execution::Shadow;
use crate::tables::{self, Found, entry, execution, record};

pub(crate) struct SqliteTx<'d> {
    desk: &'d mut Desk,
    now: TimestampMs,
    reach: Reach,
    seen: HashMap<Key, Option<Found>>,
    overlay: Overlay,
}

impl<'d> SqliteTx<'d> {
    pub(crate) fn new(desk: &'d mut Desk, reach: Reach) -> Self {
        let now = desk.clock.now();
        Self { desk, now, reach, seen: HashMap::new(), overlay: Overlay::default() }
    }

    fn stored(&mut self, key: &Key) -> Result<Option<Found>> {
        if let Some(found) = self.seen.get(key) {
            return Ok(found.clone());
        }
        let found = self.desk.load(key)?;
        self.seen.insert(key.clone(), found.clone());
        Ok(found)
    }

    fn fetch(&mut self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        keys.iter()
            .map(|key| match self.overlay.changes.get(key) {
                Some(change) => Ok(change.clone()),
                None => Ok(self.stored(key)?.map(|found| found.record)),
            })
            .collect()
    }

    fn scan(&self, index: &Index, bounds: &Bounds) -> Result<Vec<Record>> {
        if index.owner().is_none() {
            return Err(EngineError::Bug(BugKind::DanglingReference));
        }
        let found = tables::list(&self.desk.db, index, &self.overlay.widen(bounds))?;
        let found = found.into_iter().map(|listed| (listed.position, listed.record)).collect();
        Ok(self.overlay.merge(index, bounds, found))
    }

    /// Writes what the operation decided.
    pub(crate) fn apply(mut self) -> Result<()> {
        let Overlay { changes, events } = std::mem::take(&mut self.overlay);
        for (key, change) in changes {
            match change {
                Some(record) => self.save(&key, &record)?,
                None => self.remove(&key)?,
            }
            self.desk.touched(&key);
        }
        for event in &events {
            self.desk.append(event)?;
        }
        if !events.is_empty() {
            self.desk.announce(Topic::Events);
        }
        Ok(())
    }

    fn save(&mut self, key: &Key, new: &Record) -> Result<()> {
        for topic in new.topics() {
            self.desk.announce(topic);
        }
        let body = encode_record(new)?;
        if !may_be_listed(key) {
            return record::put(&self.desk.db, &encode_key(key), &body).map_err(explain);
        }
        let old = self.stored(key)?;
        let before = old.as_ref().map(|found| found.record.entries()).unwrap_or_default();
        let after = new.entries();
        let bytes = encode_key(key);
        match (&key.name, old.and_then(|found| found.row)) {
            (Name::Execution(_), Some(row)) => {
                execution::update(&self.desk.db, row, &Shadow::of(&before), &Shadow::of(&after), &body)
            }
            (Name::Execution(id), None) => execution::insert(&self.desk.db, *id, &Shadow::of(&after), &body),
            _ => record::put(&self.desk.db, &bytes, &body),
        }
        .map_err(explain)?;
        if after.iter().any(|entry| matches!(entry.index, Index::Due(_)) && !before.contains(entry)) {
            self.desk.announce(Topic::Timers);
        }
        self.move_entries(&bytes, &before, &after)
    }

    fn remove(&mut self, key: &Key) -> Result<()> {
        if !may_be_listed(key) {
            return record::delete(&self.desk.db, &encode_key(key)).map_err(explain);
        }
        let Some(old) = self.stored(key)? else { return Ok(()) };
        let bytes = encode_key(key);
        match &key.name {
            Name::Execution(id) => execution::delete(&self.desk.db, *id),
            _ => record::delete(&self.desk.db, &bytes),
        }
        .map_err(explain)?;
        self.move_entries(&bytes, &old.record.entries(), &[])
    }

    /// Columns and keys carry their own entries; all others have rows.
    fn move_entries(&self, key: &[u8], before: &[Entry], after: &[Entry]) -> Result<()> {
        let db = &self.desk.db;
        let has_row = |entry: &&Entry| Place::is_rows(&entry.index);
        for entry in before.iter().filter(has_row).filter(|entry| !after.contains(entry)) {
            entry::delete(db, entry).map_err(explain)?;
        }
        for entry in after.iter().filter(has_row).filter(|entry| !before.contains(entry)) {
            entry::insert(db, entry, key).map_err(explain)?;
        }
        Ok(())
    }
}

/// Whether records of this kind can stand in an index that does more than follow their keys. Others are written without a look at what
/// was there.
const fn may_be_listed(key: &Key) -> bool {
    !matches!(
        key.name,
        Name::Definition(_)
            | Name::Payload(_)
            | Name::Outcome(_)
            | Name::Progress(_)
            | Name::Attempt(..)
            | Name::AttemptUsage(..)
            | Name::Frame(..)
            | Name::Summary(..)
    )
}

impl Tx for SqliteTx<'_> {
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
            Reach::Everywhere => tables::list_merged(&self.desk.db, indexes, bounds),
        };
        Box::pin(std::future::ready(found))
    }

    fn put_record(&mut self, record: Record) {
        self.overlay.changes.insert(record.key(), Some(record));
    }

    fn delete(&mut self, key: Key) {
        self.overlay.changes.insert(key, None);
    }

    fn emit(&mut self, event: Event) {
        self.overlay.events.push(event);
    }
}
