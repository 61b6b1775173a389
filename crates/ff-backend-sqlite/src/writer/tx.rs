//! One operation's transaction: it reads what is stored, keeps its writes to itself, and applies them when it has decided.
//!
//! The writer runs one operation after another, so nothing it has read can change under it.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry as HashEntry;
use std::sync::Arc;

use ff_core::backend::layer::BoxFuture;
use ff_core::error::BugKind;
use ff_core::ids::ExecutionId;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::alarms::awaited_at;
use ff_engine::codec::{encode_index, encode_key, encode_record};
use ff_engine::event::Event;
use ff_engine::hash::HashMap;
use ff_engine::index::{Bounds, Entry, Index, Listed, Topic, merge_listed};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;
use ff_engine::store::{Op, Reach, Tx};

use super::desk::Desk;
use crate::error::explain;
use crate::indexes::Place;
use crate::tables::execution::{Change, Stored};
use crate::tables::satellite::{self, Cell, Satellite};
use crate::tables::{entry, record};

pub(crate) struct SqliteTx<'d> {
    desk: &'d mut Desk,
    now: TimestampMs,
    reach: Reach,
    /// An execution of which nothing is stored.
    newborn: Option<ExecutionId>,
    /// Rows of executions that were read.
    rows: HashMap<ExecutionId, Option<Stored>>,
    /// Other records that were read.
    seen: HashMap<Key, Option<Record>>,
    overlay: Overlay,
}

impl<'d> SqliteTx<'d> {
    pub(crate) fn new(desk: &'d mut Desk, op: &impl Op) -> Self {
        Self {
            now: desk.clock.now(),
            desk,
            reach: op.reach(),
            newborn: op.newborn(),
            rows: HashMap::default(),
            seen: HashMap::default(),
            overlay: Overlay::default(),
        }
    }

    fn row(&mut self, id: ExecutionId) -> Result<Option<&Stored>> {
        if self.desk.young(id).is_some() {
            return Ok(self.desk.young(id));
        }
        if self.newborn == Some(id) {
            return Ok(None);
        }
        match self.rows.entry(id) {
            HashEntry::Occupied(known) => Ok(known.into_mut().as_ref()),
            HashEntry::Vacant(place) => Ok(place.insert(self.desk.row(id)?).as_ref()),
        }
    }

    fn stored(&mut self, key: &Key) -> Result<Option<Record>> {
        if let Name::Execution(id) | Name::Fence(id) = key.name {
            let Some(found) = self.row(id)? else { return Ok(None) };
            let record = found.record.clone()?;
            return Ok(Some(if matches!(key.name, Name::Fence(_)) { record.ownership() } else { record }));
        }
        let cell = match Satellite::of(key) {
            Some((id, satellite)) => self.row(id)?.map(|found| found.cells[satellite as usize].clone()),
            None => None,
        };
        match cell {
            Some(Cell::Absent) => return Ok(None),
            Some(Cell::Known(record)) => return Ok(Some(record)),
            _ => {}
        }
        if let Some(found) = self.seen.get(key) {
            return Ok(found.clone());
        }
        let found = match cell {
            Some(cell) => satellite::decode(&self.desk.db, key, &cell)?,
            None => self.desk.load(key)?,
        };
        self.seen.insert(key.clone(), found.clone());
        Ok(found)
    }

    fn fetch(&mut self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        keys.iter()
            .map(|key| match self.overlay.changes.get(key) {
                Some(change) => Ok(change.clone()),
                None => self.stored(key),
            })
            .collect()
    }

    fn scan(&mut self, index: &Index, bounds: &Bounds) -> Result<Vec<Record>> {
        if index.owner().is_none() {
            return Err(EngineError::Bug(BugKind::DanglingReference));
        }
        let found = self.desk.list(index, &self.overlay.widen(bounds))?;
        let found = found.into_iter().map(|listed| (listed.position, listed.record)).collect();
        Ok(self.overlay.merge(index, bounds, found))
    }

    /// Lists; executions by way of their rows, which are likely to be known and to be asked for next.
    fn look_up(&mut self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let mut lists = Vec::with_capacity(indexes.len());
        for index in indexes {
            let Some(keys) = self.desk.keys(index, bounds)? else {
                lists.push(self.desk.list(index, bounds)?);
                continue;
            };
            let mut listed = Vec::with_capacity(keys.len());
            for (position, key) in keys {
                if let Some(record) = self.stored(&key)? {
                    listed.push(Listed { index: index.clone(), position, record });
                }
            }
            lists.push(listed);
        }
        Ok(merge_listed(lists, bounds))
    }

    /// Writes what the operation decided.
    pub(crate) fn apply(mut self) -> Result<()> {
        self.desk.check_open()?;
        let Overlay { changes, events } = std::mem::take(&mut self.overlay);
        if !changes.is_empty() {
            self.desk.wrote();
        }
        let mut rows: BTreeMap<ExecutionId, RowChange<'_>> = BTreeMap::new();
        for (key, change) in &changes {
            for topic in change.iter().flat_map(Record::topics) {
                self.desk.announce(topic);
            }
            match (&key.name, Satellite::of(key)) {
                (Name::Execution(id), _) => rows.entry(*id).or_default().execution = Some(change),
                (_, Some((id, satellite))) => rows.entry(id).or_default().cells[satellite as usize] = Some(change),
                _ => self.save(key, change.as_ref())?,
            }
            // Saving may look at what was there, and what was looked at is remembered.
            self.desk.touched(key);
        }
        for (id, change) in rows {
            self.save_row(id, &change)?;
        }
        for event in &events {
            self.desk.append(event)?;
        }
        if !events.is_empty() {
            self.desk.announce(Topic::Events);
        }
        Ok(())
    }

    /// Writes or removes a record that stands in the table of records.
    fn save(&mut self, key: &Key, new: Option<&Record>) -> Result<()> {
        let bytes = encode_key(key);
        if key.may_be_listed() {
            let old = self.stored(key)?;
            if old.is_none() && new.is_none() {
                return Ok(());
            }
            let before = old.map(|old| old.entries()).unwrap_or_default();
            let after = new.map(Record::entries).unwrap_or_default();
            self.move_entries(&bytes, &before, &after)?;
        }
        match new {
            Some(record) => record::put(&self.desk.db, &bytes, &encode_record(record)?),
            None => record::delete(&self.desk.db, &bytes),
        }
        .map_err(explain)
    }

    /// Writes what changes of an execution and of what stands beside it.
    fn save_row(&mut self, id: ExecutionId, wanted: &RowChange<'_>) -> Result<()> {
        let stored = self.row(id)?.cloned();
        let will_exist = wanted.execution.map_or(stored.is_some(), Option::is_some);
        if !will_exist {
            return self.without_row(id, wanted, stored);
        }
        let mut change = Change::default();
        let mut after = match stored {
            Some(found) => found,
            None => self.new_row(id, &mut change)?,
        };
        let before = after.entries();
        if let Some(Some(record)) = wanted.execution {
            let entries = Arc::new(record.entries());
            self.move_entries(&encode_key(&Key::execution(id)), &before, &entries)?;
            change.body = Some(encode_record(record)?);
            after.record = Ok(record.clone());
            after.entries = Some(entries);
        }
        for satellite in Satellite::ALL {
            if let Some(new) = wanted.cells[satellite as usize] {
                let cell = &mut after.cells[satellite as usize];
                if new.is_none() && *cell == Cell::Absent {
                    continue;
                }
                change.cells[satellite as usize] = Some(self.place(id, satellite, new.as_ref(), cell)?);
            }
        }
        if change.is_empty() {
            return Ok(());
        }
        self.desk.save_row(id, after, change, &before)
    }

    /// A row for an execution that has none; records that were there before it stay where they are.
    fn new_row(&self, id: ExecutionId, change: &mut Change) -> Result<Stored> {
        let mut row = Stored::missing();
        if self.newborn == Some(id) || !record::has_any_of(&self.desk.db, id)? {
            return Ok(row);
        }
        for satellite in Satellite::ALL {
            if record::is_present(&self.desk.db, &satellite.key(id))? {
                row.cells[satellite as usize] = Cell::Elsewhere;
                change.cells[satellite as usize] = Some(Some(Vec::new()));
            }
        }
        Ok(row)
    }

    /// What the column of a record is to hold; a large one goes to the table of records. `cell` is what it held, and then what it holds.
    fn place(
        &mut self,
        id: ExecutionId,
        satellite: Satellite,
        new: Option<&Record>,
        cell: &mut Cell,
    ) -> Result<Option<Vec<u8>>> {
        let key = satellite.key(id);
        if key.may_be_listed() {
            let before = self.stored(&key)?.map(|old| old.entries()).unwrap_or_default();
            let after = new.map(Record::entries).unwrap_or_default();
            self.move_entries(&encode_key(&key), &before, &after)?;
        }
        let was_elsewhere = *cell == Cell::Elsewhere;
        let body = new.map(encode_record).transpose()?;
        let (column, now) = match (body, new) {
            (Some(body), Some(record)) if body.len() <= satellite::ROW_BYTES_MAX => {
                (Some(body), Cell::Known(record.clone()))
            }
            (Some(body), _) => {
                record::put(&self.desk.db, &encode_key(&key), &body).map_err(explain)?;
                (Some(Vec::new()), Cell::Elsewhere)
            }
            (None, _) => (None, Cell::Absent),
        };
        if was_elsewhere && now != Cell::Elsewhere {
            record::delete(&self.desk.db, &encode_key(&key)).map_err(explain)?;
        }
        *cell = now;
        Ok(column)
    }

    /// Removes an execution's row, if there is one; what stood beside it and stays goes to the table of records.
    fn without_row(&mut self, id: ExecutionId, wanted: &RowChange<'_>, stored: Option<Stored>) -> Result<()> {
        for satellite in Satellite::ALL {
            let key = satellite.key(id);
            let left = stored.as_ref().map_or(&Cell::Absent, |found| &found.cells[satellite as usize]);
            match (wanted.cells[satellite as usize], left) {
                (Some(new), _) => self.save(&key, new.as_ref())?,
                (None, Cell::Absent | Cell::Elsewhere) => {}
                (None, Cell::Here(body)) => record::put(&self.desk.db, &encode_key(&key), body).map_err(explain)?,
                (None, Cell::Known(record)) => {
                    let body = encode_record(record)?;
                    record::put(&self.desk.db, &encode_key(&key), &body).map_err(explain)?;
                }
            }
        }
        let Some(found) = stored else { return Ok(()) };
        self.move_entries(&encode_key(&Key::execution(id)), &found.entries(), &[])?;
        self.desk.delete_row(id, found.row)
    }

    /// Columns and keys carry their own entries; all others have rows.
    fn move_entries(&mut self, key: &[u8], before: &[Entry], after: &[Entry]) -> Result<()> {
        let awaited = after.iter().filter_map(|entry| Some((entry, awaited_at(entry)?)));
        if let Some(at) = awaited.filter(|(entry, _)| !before.contains(entry)).map(|(_, at)| at).min() {
            self.desk.announce_due(at);
        }
        let has_row = |entry: &&Entry| Place::is_rows(&entry.index);
        for entry in before.iter().filter(has_row).filter(|entry| !after.contains(entry)) {
            entry::delete(&self.desk.db, entry).map_err(explain)?;
        }
        for entry in after.iter().filter(has_row).filter(|entry| !before.contains(entry)) {
            let list = encode_index(&entry.index);
            entry::insert(&self.desk.db, &list, &entry.position, key).map_err(explain)?;
            self.desk.listed(&list);
        }
        Ok(())
    }
}

/// What an operation wants of an execution's row; `Some(None)` means gone.
#[derive(Default)]
struct RowChange<'c> {
    execution: Option<&'c Option<Record>>,
    cells: [Option<&'c Option<Record>>; Satellite::ALL.len()],
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
            Reach::Everywhere => self.look_up(indexes, bounds),
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
