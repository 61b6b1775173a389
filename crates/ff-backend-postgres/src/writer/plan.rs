//! From decisions to statements.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::awaited_at;
use ff_engine::codec::{encode_event, encode_key, encode_record};
use ff_engine::event::Event;
use ff_engine::index::{Entry, Topic};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use super::batch::Accepted;
use super::changes;
use crate::address::{Address, Cell, ROW_BYTES_MAX, Satellite, Stored};
use crate::indexes::Place;
use crate::session::Step;
use crate::tables::created::{self, Creation};
use crate::tables::entry::{self, RawEntry};
use crate::tables::execution::{self, Shadow};
use crate::tables::{Facts, event, record};

/// What is told after a commit.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) topics: HashSet<Topic>,
    /// When the earliest new entry comes due.
    pub(crate) due_at: Option<TimestampMs>,
}

/// One commit.
#[derive(Default)]
pub(super) struct Plan {
    /// Partitions that are read, and whether they are written.
    pub(super) places: BTreeMap<Partition, bool>,
    /// The versions that rows must have.
    expected: BTreeMap<Address, i64>,
    version: i64,
    inserted: execution::Rows,
    updated: execution::Rows,
    deleted: Vec<ExecutionId>,
    touched: BTreeSet<ExecutionId>,
    put: Vec<(Key, Vec<u8>)>,
    removed: Vec<Vec<u8>>,
    touched_records: BTreeSet<Key>,
    entered: entry::Rows,
    left: entry::Rows,
    created: created::Rows,
    forgotten: created::Rows,
    events: (Vec<i64>, Vec<Vec<u8>>),
    pub(super) news: News,
    /// What rows hold after the commit.
    pub(super) after: Vec<(Address, Option<Arc<Stored>>)>,
}

/// What is wanted of an execution's row.
#[derive(Default)]
struct RowChange<'c> {
    execution: Option<&'c Option<Record>>,
    cells: [Option<&'c Option<Record>>; Satellite::ALL.len()],
}

impl Plan {
    /// The plan for decisions that are based on these facts. `version` is new.
    pub(super) fn new(
        facts: &Facts,
        accepted: &Accepted,
        newborn: &HashSet<ExecutionId>,
        version: i64,
    ) -> Result<Self> {
        let mut plan = Self { version, ..Self::default() };
        let changes = &accepted.overlay.changes;
        let mut rows: BTreeMap<ExecutionId, RowChange<'_>> = BTreeMap::new();
        for (key, change) in changes {
            plan.places.insert(key.partition, true);
            plan.news.topics.extend(change.iter().flat_map(Record::topics));
            plan.touch_owners(facts, changes, key, change.as_ref());
            match (&key.name, Satellite::of(key)) {
                (Name::Execution(id), _) => rows.entry(*id).or_default().execution = Some(change),
                (_, Some((id, satellite))) => rows.entry(id).or_default().cells[satellite as usize] = Some(change),
                _ => plan.save(facts, key, change.as_ref())?,
            }
        }
        for (id, change) in &rows {
            plan.save_row(facts, *id, change)?;
        }
        plan.touched.retain(|id| !rows.contains_key(id));
        plan.touched_records.retain(|key| !changes.contains_key(key));
        plan.remember_touched(facts);
        plan.expect(facts, accepted, &rows, newborn);
        for event in &accepted.overlay.events {
            plan.append(event)?;
        }
        Ok(plan)
    }

    /// The rows that it depends on.
    pub(super) fn addresses(&self) -> Vec<Address> {
        self.expected.keys().cloned().collect()
    }

    /// Whether anything is to be written.
    pub(super) fn writes(&self) -> bool {
        self.places.values().any(|is_written| *is_written) || !self.events.0.is_empty()
    }

    /// The rows that decisions and writes depend on.
    fn expect(
        &mut self,
        facts: &Facts,
        accepted: &Accepted,
        rows: &BTreeMap<ExecutionId, RowChange<'_>>,
        newborn: &HashSet<ExecutionId>,
    ) {
        let written = accepted.overlay.changes.keys().filter(|key| key.may_be_listed()).map(Address::of);
        let replaced = rows.keys().map(|id| Address::Execution(*id));
        // What has a row of its own although it could stand beside its execution.
        let beside = rows.keys().flat_map(|id| Satellite::ALL.map(|satellite| Address::Record(satellite.key(*id))));
        for address in accepted.read.iter().cloned().chain(written).chain(replaced).chain(beside) {
            let known = facts.get(&address);
            if known.is_none() || address.execution().is_some_and(|id| newborn.contains(&id)) {
                continue;
            }
            let version = known.and_then(Option::as_ref).map_or(Stored::NO_VERSION, |stored| stored.version);
            self.places.entry(address.partition()).or_insert(false);
            self.expected.insert(address, version);
        }
    }

    /// Entering or leaving a range is a change of its owner.
    fn touch_owners(
        &mut self,
        facts: &Facts,
        changed: &BTreeMap<Key, Option<Record>>,
        key: &Key,
        change: Option<&Record>,
    ) {
        let before = changes::stored(facts, key);
        for owner in changes::touched(key, before.as_ref(), change).iter().filter_map(ff_engine::index::Index::owner) {
            if changed.contains_key(&owner) {
                continue;
            }
            match Address::of(&owner) {
                Address::Execution(id) => drop(self.touched.insert(id)),
                Address::Record(key) => drop(self.touched_records.insert(key)),
            }
        }
    }

    /// What touched owners hold after the commit: the same under another version.
    fn remember_touched(&mut self, facts: &Facts) {
        let executions = self.touched.iter().map(|id| Address::Execution(*id));
        let records = self.touched_records.iter().map(|key| Address::Record(key.clone()));
        for address in executions.chain(records) {
            let known = facts.get(&address).and_then(Option::as_deref);
            let after = known.map(|stored| Arc::new(Stored { version: self.version, ..stored.clone() }));
            self.after.push((address, after));
        }
    }

    /// Writes or removes a record that has a row of its own.
    fn save(&mut self, facts: &Facts, key: &Key, new: Option<&Record>) -> Result<()> {
        if key.may_be_listed() {
            self.move_entries(key, changes::stored(facts, key).as_ref(), new);
        }
        match new {
            Some(record) => self.put_record(key, encode_record(record)?, record),
            None => self.remove_record(key),
        }
        Ok(())
    }

    fn put_record(&mut self, key: &Key, body: Vec<u8>, record: &Record) {
        let stored = Stored {
            version: self.version,
            record: Ok(record.clone()),
            body: body.as_slice().into(),
            cells: Default::default(),
        };
        self.after.push((Address::Record(key.clone()), Some(Arc::new(stored))));
        self.put.push((key.clone(), body));
    }

    fn remove_record(&mut self, key: &Key) {
        self.after.push((Address::Record(key.clone()), None));
        self.removed.push(record::stored_key(key));
    }

    /// Writes what changes of an execution and of what stands beside it.
    fn save_row(&mut self, facts: &Facts, id: ExecutionId, wanted: &RowChange<'_>) -> Result<()> {
        let address = Address::Execution(id);
        let stored = facts.get(&address).cloned().flatten();
        let will_exist = wanted.execution.map_or(stored.is_some(), Option::is_some);
        if !will_exist {
            return self.without_row(facts, id, wanted, stored.as_deref());
        }
        let mut row = match (&stored, wanted.execution) {
            (_, Some(Some(record))) => Stored {
                version: self.version,
                body: encode_record(record)?.into(),
                record: Ok(record.clone()),
                cells: stored.as_ref().map_or_else(|| new_cells(facts, id), |stored| stored.cells.clone()),
            },
            (Some(stored), _) => Stored { version: self.version, ..Stored::clone(stored) },
            (None, _) => return Ok(()),
        };
        let entries = row.entries();
        if let Some(Some(record)) = wanted.execution {
            let before = changes::stored(facts, &Key::execution(id));
            self.move_entries(&Key::execution(id), before.as_ref(), Some(record));
        }
        for satellite in Satellite::ALL {
            if let Some(new) = wanted.cells[satellite as usize] {
                let key = satellite.key(id);
                if key.may_be_listed() {
                    self.move_entries(&key, changes::stored(facts, &key).as_ref(), new.as_ref());
                }
                self.place(&key, new.as_ref(), &mut row.cells[satellite as usize])?;
            }
        }
        self.note_creation(id, stored.as_deref(), &entries);
        let rows = if stored.is_some() { &mut self.updated } else { &mut self.inserted };
        rows.push(id, &row, Shadow::of(&entries));
        self.after.push((address, Some(Arc::new(row))));
        Ok(())
    }

    fn note_creation(&mut self, id: ExecutionId, stored: Option<&Stored>, entries: &[Entry]) {
        let before = stored.and_then(|stored| Creation::of(&stored.entries()));
        let after = Creation::of(entries);
        if before != after {
            before.into_iter().for_each(|creation| self.forgotten.push(id, creation));
            after.into_iter().for_each(|creation| self.created.push(id, creation));
        }
    }

    /// Puts a record into the column of its execution, or into a row of its own if it is large.
    fn place(&mut self, key: &Key, new: Option<&Record>, cell: &mut Cell) -> Result<()> {
        let was_elsewhere = *cell == Cell::Elsewhere;
        *cell = match new {
            None => Cell::Absent,
            Some(record) => {
                let body = encode_record(record)?;
                if body.len() > ROW_BYTES_MAX {
                    self.put_record(key, body, record);
                    Cell::Elsewhere
                } else {
                    Cell::Here(body)
                }
            }
        };
        if was_elsewhere && *cell != Cell::Elsewhere {
            self.remove_record(key);
        }
        Ok(())
    }

    /// Removes an execution's row, if there is one; what stood beside it and stays gets a row of its own.
    fn without_row(
        &mut self,
        facts: &Facts,
        id: ExecutionId,
        wanted: &RowChange<'_>,
        stored: Option<&Stored>,
    ) -> Result<()> {
        for satellite in Satellite::ALL {
            let key = satellite.key(id);
            let left = stored.map_or(&Cell::Absent, |stored| &stored.cells[satellite as usize]);
            match (wanted.cells[satellite as usize], left) {
                (Some(new), _) => self.save(facts, &key, new.as_ref())?,
                (None, Cell::Here(body)) => {
                    self.put.push((key.clone(), body.clone()));
                    self.after.push((Address::Record(key), None));
                }
                (None, Cell::Absent | Cell::Elsewhere) => {}
            }
        }
        let Some(stored) = stored else { return Ok(()) };
        self.move_entries(&Key::execution(id), stored.record.as_ref().ok(), None);
        self.note_creation(id, Some(stored), &[]);
        self.deleted.push(id);
        self.after.push((Address::Execution(id), None));
        Ok(())
    }

    /// Columns and keys carry their own entries; all others have rows.
    fn move_entries(&mut self, key: &Key, before: Option<&Record>, after: Option<&Record>) {
        let (gone, come) = changes::moved(before, after);
        self.news.due_at = come.iter().filter_map(awaited_at).chain(self.news.due_at).min();
        let bytes = encode_key(key);
        for entry in gone.iter().filter(|entry| Place::is_rows(&entry.index)) {
            self.left.push(RawEntry::of(entry), &bytes);
        }
        for entry in come.iter().filter(|entry| Place::is_rows(&entry.index)) {
            self.entered.push(RawEntry::of(entry), &bytes);
        }
    }

    fn append(&mut self, event: &Event) -> Result<()> {
        self.news.topics.insert(Topic::Events);
        self.places.insert(event.partition, true);
        self.events.0.push(event.at.0);
        self.events.1.push(encode_event(event)?);
        Ok(())
    }

    /// The statements, to be run as one.
    ///
    /// Where partitions are taken already, more of them are taken only if nobody else has them: to wait would break the order in which
    /// everybody takes them.
    pub(super) fn into_steps(self, waits: bool) -> Vec<Step> {
        let enter = self.enter(waits);
        let touched: Vec<ExecutionId> = self.touched.into_iter().collect();
        let touched_records: Vec<Vec<u8>> = self.touched_records.iter().map(record::stored_key).collect();
        let writes = [
            self.left.delete(),
            self.forgotten.delete(),
            execution::delete(&self.deleted),
            record::delete(self.removed),
            execution::touch(&touched, self.version),
            record::touch(touched_records, self.version),
            self.inserted.insert(),
            self.updated.update(),
            self.created.insert(),
            record::put(self.put, self.version),
            self.entered.insert(),
            event::append(self.events.0, self.events.1),
        ];
        std::iter::once(enter).chain(writes.into_iter().flatten()).collect()
    }

    /// Takes the partitions, makes sure that nothing has changed, and asks for the time.
    fn enter(&self, waits: bool) -> Step {
        let (mut executions, mut versions) = (Vec::new(), Vec::new());
        let (mut keys, mut key_versions) = (Vec::new(), Vec::new());
        for (address, version) in &self.expected {
            match address {
                Address::Execution(id) => {
                    executions.push(*id);
                    versions.push(*version);
                }
                Address::Record(key) => {
                    keys.push(record::stored_key(key));
                    key_versions.push(*version);
                }
            }
        }
        let (partitions, uuids) = execution::columns_of(executions);
        let (places, shared): (Vec<i32>, Vec<bool>) =
            self.places.iter().map(|(partition, is_written)| (place(*partition), !is_written)).unzip();
        Step::new("SELECT {s}.enter($1, $2, $3, $4, $5, $6, $7, $8, $9)")
            .with(places)
            .with(shared)
            .with(waits)
            .with(!self.events.0.is_empty())
            .with(partitions)
            .with(uuids)
            .with(versions)
            .with(keys)
            .with(key_versions)
    }
}

/// Takes partitions, for writing or not, before anything is read.
pub(crate) fn lock(places: &BTreeMap<Partition, bool>) -> Step {
    let (numbers, shared): (Vec<i32>, Vec<bool>) =
        places.iter().map(|(partition, is_written)| (place(*partition), !is_written)).unzip();
    Step::new("SELECT {s}.enter($1, $2, TRUE, FALSE, '{}', '{}', '{}', '{}', '{}')").with(numbers).with(shared)
}

/// The number of a partition among the locks, in the order of partitions.
pub(super) fn place(partition: Partition) -> i32 {
    partition.to_bytes().into_iter().fold(0, |number, byte| number << 8 | i32::from(byte))
}

/// What stands in rows of its own although it could stand beside its execution.
fn new_cells(facts: &Facts, id: ExecutionId) -> [Cell; Satellite::ALL.len()] {
    Satellite::ALL.map(|satellite| {
        let own = facts.get(&Address::Record(satellite.key(id))).cloned().flatten();
        if own.is_some() { Cell::Elsewhere } else { Cell::Absent }
    })
}
