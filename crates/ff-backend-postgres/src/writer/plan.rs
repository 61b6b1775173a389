//! From decisions to statements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::awaited_at;
use ff_engine::codec::{encode_event, encode_key, encode_record};
use ff_engine::event::Event;
use ff_engine::hash::HashSet;
use ff_engine::index::{Entry, Index, Topic};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;

use super::batch::Accepted;
use super::changes::{self, AllEntries};
use super::locks::{Locks, place};
use super::mirror::{Moved, is_queue};
use crate::address::{Address, Cell, Entries, Satellite, Stored, execution_of};
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
    locks: Locks,
    /// The versions that rows must have.
    expected: Arc<Vec<(Address, i64)>>,
    version: i64,
    rows: execution::Rows,
    deleted: Vec<ExecutionId>,
    touched: BTreeSet<ExecutionId>,
    put: Vec<record::Write>,
    removed: Vec<Vec<u8>>,
    touched_records: BTreeSet<Key>,
    entered: entry::Rows,
    left: entry::Rows,
    created: created::Rows,
    forgotten: created::Rows,
    events: event::Rows,
    pub(super) news: News,
    /// What rows hold after the commit.
    pub(super) after: Vec<(Address, Option<Arc<Stored>>)>,
    /// What stood or stands in queues.
    pub(super) moved: Vec<Moved>,
}

/// What is wanted of an execution's row.
#[derive(Default)]
struct RowChange {
    execution: Option<Option<Record>>,
    cells: [Option<Option<Record>>; Satellite::ALL.len()],
}

impl Plan {
    /// The plan for decisions that are based on these facts. `version` is new.
    pub(super) fn new(facts: &Facts, accepted: Accepted, newborn: &HashSet<ExecutionId>, version: i64) -> Result<Self> {
        let mut plan = Self { version, ..Self::default() };
        let Accepted { overlay: Overlay { changes, events }, entries, read, .. } = accepted;
        let rows: BTreeSet<ExecutionId> = changes.keys().filter_map(row_of).collect();
        plan.expect(facts, &changes, read, &rows, newborn);
        for (key, change) in &changes {
            plan.places.insert(key.partition, true);
            // Nobody else knows of what is only now being born.
            if !execution_of(key).is_some_and(|id| newborn.contains(&id)) {
                plan.locks.take(key, true);
            }
            plan.news.topics.extend(change.iter().flat_map(Record::topics));
            plan.touch_owners(facts, &changes, key, &entries.of(key));
        }
        plan.touched.retain(|id| !rows.contains(id));
        plan.touched_records.retain(|key| !changes.contains_key(key));
        plan.remember_touched(facts);
        let mut rows: BTreeMap<ExecutionId, RowChange> = BTreeMap::new();
        for (key, change) in changes {
            match (&key.name, Satellite::of(&key)) {
                (Name::Execution(id), _) => rows.entry(*id).or_default().execution = Some(change),
                (_, Some((id, satellite))) => rows.entry(id).or_default().cells[satellite as usize] = Some(change),
                _ => plan.save(facts, &key, change, &entries)?,
            }
        }
        for (id, change) in rows {
            plan.save_row(facts, id, change, &entries)?;
        }
        for event in &events {
            plan.append(event)?;
        }
        Ok(plan)
    }

    /// The rows that it depends on, and their versions.
    pub(super) fn expected(&self) -> Arc<Vec<(Address, i64)>> {
        Arc::clone(&self.expected)
    }

    /// Whether anything is to be written.
    pub(super) fn writes(&self) -> bool {
        self.places.values().any(|is_written| *is_written) || !self.events.is_empty()
    }

    /// The rows that decisions and writes depend on.
    fn expect(
        &mut self,
        facts: &Facts,
        changes: &BTreeMap<Key, Option<Record>>,
        mut read: HashSet<Address>,
        rows: &BTreeSet<ExecutionId>,
        newborn: &HashSet<ExecutionId>,
    ) {
        let is_listed = |key: &&Key| key.may_be_listed() && row_of(key).is_none();
        let written = changes.keys().filter(is_listed).map(Address::of);
        let replaced = rows.iter().map(|id| Address::Execution(*id));
        // What has a row of its own although it could stand beside its execution.
        let is_beside = |address: &&Address| match address {
            Address::Record(key) => Satellite::of(key).is_some_and(|(id, _)| rows.contains(&id)),
            Address::Execution(_) => false,
        };
        let beside = facts.keys().filter(is_beside).cloned();
        read.extend(written.chain(replaced).chain(beside));
        let mut expected = Vec::with_capacity(read.len());
        for address in read {
            let Some(known) = facts.get(&address) else { continue };
            if address.execution().is_some_and(|id| newborn.contains(&id)) {
                continue;
            }
            let version = known.as_ref().map_or(Stored::NO_VERSION, |stored| stored.version);
            self.places.entry(address.partition()).or_insert(false);
            self.locks.take_address(&address, false);
            expected.push((address, version));
        }
        self.expected = Arc::new(expected);
    }

    /// Entering or leaving a range is a change of its owner.
    fn touch_owners(&mut self, facts: &Facts, changed: &BTreeMap<Key, Option<Record>>, key: &Key, after: &[Entry]) {
        let before = changes::stored_entries(facts, key);
        for owner in changes::touched(key, &before, after).iter().filter_map(Index::owner) {
            self.locks.take(&owner, true);
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
        for address in executions.chain(records).collect::<Vec<_>>() {
            let known = facts.get(&address).and_then(Option::as_deref);
            if let (Address::Execution(id), Some(stored)) = (&address, known) {
                self.note_move(&Key::execution(*id), stored.entries(), stored.entries());
            }
            let after = known.map(|stored| Arc::new(stored.at_version(self.version)));
            self.after.push((address, after));
        }
    }

    /// Writes or removes a record that has a row of its own.
    fn save(&mut self, facts: &Facts, key: &Key, new: Option<Record>, after: &AllEntries) -> Result<()> {
        let entries = after.of(key);
        self.move_entries(facts, key, &entries);
        match new {
            Some(record) => self.put_record(key, encode_record(&record)?, record, entries),
            None => self.remove_record(key),
        }
        Ok(())
    }

    fn put_record(&mut self, key: &Key, body: Vec<u8>, record: Record, entries: Entries) {
        let stored = Stored::written(self.version, record, body.as_slice().into(), entries);
        self.after.push((Address::Record(key.clone()), Some(Arc::new(stored))));
        self.put.push(record::Write::new(key, body));
    }

    fn remove_record(&mut self, key: &Key) {
        self.after.push((Address::Record(key.clone()), None));
        self.removed.push(record::stored_key(key));
    }

    /// Writes what changes of an execution and of what stands beside it.
    fn save_row(&mut self, facts: &Facts, id: ExecutionId, wanted: RowChange, after: &AllEntries) -> Result<()> {
        let address = Address::Execution(id);
        let stored = facts.get(&address).cloned().flatten();
        let will_exist = wanted.execution.as_ref().map_or(stored.is_some(), Option::is_some);
        if !will_exist {
            return self.without_row(facts, id, wanted, after, stored.as_deref());
        }
        let mut row = match (&stored, wanted.execution) {
            (_, Some(Some(record))) => {
                let key = Key::execution(id);
                let entries = after.of(&key);
                self.move_entries(facts, &key, &entries);
                let body = encode_record(&record)?.into();
                let mut row = Stored::written(self.version, record, body, entries);
                row.cells = stored.as_ref().map_or_else(|| new_cells(facts, id), |stored| stored.cells.clone());
                row
            }
            (Some(stored), _) => {
                self.note_move(&Key::execution(id), stored.entries(), stored.entries());
                stored.at_version(self.version)
            }
            (None, _) => return Ok(()),
        };
        for (satellite, new) in Satellite::ALL.into_iter().zip(wanted.cells) {
            if let Some(new) = new {
                let key = satellite.key(id);
                let entries = after.of(&key);
                self.move_entries(facts, &key, &entries);
                self.place(satellite, &key, new, &mut row.cells[satellite as usize], entries)?;
            }
        }
        let shadow = Shadow::of(row.entries());
        match &stored {
            Some(stored) => {
                self.note_creation(id, stored, row.entries());
                self.rows.update(id, stored.version, &row, shadow);
            }
            None => {
                let namespace = Creation::of(row.entries()).map(|creation| creation.namespace);
                self.rows.add(id, &row, shadow, namespace);
            }
        }
        self.after.push((address, Some(Arc::new(row))));
        Ok(())
    }

    /// When an execution was created hardly ever changes.
    fn note_creation(&mut self, id: ExecutionId, stored: &Stored, entries: &[Entry]) {
        let (before, after) = (Creation::of(stored.entries()), Creation::of(entries));
        if before != after {
            before.into_iter().for_each(|creation| self.forgotten.push(id, creation));
            after.into_iter().for_each(|creation| self.created.push(id, creation));
        }
    }

    /// Puts a record into the column of its execution, or into a row of its own if it is large.
    fn place(
        &mut self,
        satellite: Satellite,
        key: &Key,
        new: Option<Record>,
        cell: &mut Cell,
        entries: Entries,
    ) -> Result<()> {
        let was_elsewhere = *cell == Cell::Elsewhere;
        *cell = match new {
            None => Cell::Absent,
            Some(record) => {
                let body = encode_record(&record)?;
                if body.len() > satellite.bytes_max() {
                    self.put_record(key, body, record, entries);
                    Cell::Elsewhere
                } else {
                    Cell::Here(body.into())
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
        wanted: RowChange,
        after: &AllEntries,
        stored: Option<&Stored>,
    ) -> Result<()> {
        for (satellite, new) in Satellite::ALL.into_iter().zip(wanted.cells) {
            let key = satellite.key(id);
            let left = stored.map_or(&Cell::Absent, |stored| &stored.cells[satellite as usize]);
            match (new, left) {
                (Some(new), _) => self.save(facts, &key, new, after)?,
                (None, Cell::Here(body)) => {
                    self.put.push(record::Write::new(&key, body.to_vec()));
                    self.after.push((Address::Record(key), None));
                }
                (None, Cell::Absent | Cell::Elsewhere) => {}
            }
        }
        let Some(stored) = stored else { return Ok(()) };
        self.move_entries(facts, &Key::execution(id), &Entries::default());
        self.note_creation(id, stored, &[]);
        self.deleted.push(id);
        self.after.push((Address::Execution(id), None));
        Ok(())
    }

    /// Columns and keys carry their own entries; all others have rows.
    fn move_entries(&mut self, facts: &Facts, key: &Key, after: &Entries) {
        let before = changes::stored_entries(facts, key);
        self.note_move(key, &before, after);
        let come = |entry: &&Entry| !before.contains(entry);
        let due_at = after.iter().filter(|entry| awaited_at(entry).is_some()).filter(come).filter_map(awaited_at);
        self.news.due_at = due_at.chain(self.news.due_at).min();
        let has_row = |entry: &&Entry| Place::is_rows(&entry.index);
        for entry in before.iter().filter(has_row).filter(|entry| !after.contains(entry)) {
            self.left.push(RawEntry::of(entry), &encode_key(key));
        }
        for entry in after.iter().filter(has_row).filter(come) {
            self.entered.push(RawEntry::of(entry), &encode_key(key));
        }
    }

    fn note_move(&mut self, key: &Key, before: &Entries, after: &Entries) {
        if before.iter().chain(&**after).any(|entry| is_queue(&entry.index)) {
            self.moved.push(Moved { key: key.clone(), before: Arc::clone(before), after: Arc::clone(after) });
        }
    }

    fn append(&mut self, event: &Event) -> Result<()> {
        self.news.topics.insert(Topic::Events);
        self.places.insert(event.partition, true);
        self.events.push(event.at, &encode_event(event)?)
    }

    /// The statements, to be run as one. The first one suffices for nearly every commit.
    ///
    /// Where partitions are taken already, more of them are taken only if nobody else has them: to wait would break the order in which
    /// everybody takes them.
    pub(super) fn into_steps(mut self, is_taken: bool) -> Vec<Step> {
        let touched: Vec<ExecutionId> = std::mem::take(&mut self.touched).into_iter().collect();
        let touched_records: Vec<Vec<u8>> = self.touched_records.iter().map(record::stored_key).collect();
        let others = [
            std::mem::take(&mut self.left).delete(),
            std::mem::take(&mut self.forgotten).delete(),
            execution::delete(&self.deleted),
            record::delete(std::mem::take(&mut self.removed)),
            execution::touch(&touched, self.version),
            record::touch(touched_records, self.version),
            std::mem::take(&mut self.created).insert(),
            std::mem::take(&mut self.entered).insert(),
        ];
        std::iter::once(self.into_commit(is_taken)).chain(others.into_iter().flatten()).collect()
    }

    /// Takes the places, makes sure that nothing has changed, writes, and asks for the time.
    fn into_commit(self, is_taken: bool) -> Step {
        let (mut executions, mut records) = (Vec::new(), Vec::new());
        for (address, version) in &*self.expected {
            match address {
                // The update itself looks at the version.
                Address::Execution(id) if self.rows.updates(*id) => {}
                Address::Execution(id) => executions.push(execution::Seen::new(*id, *version)),
                Address::Record(key) => records.push(record::Seen::new(key, *version)),
            }
        }
        let (places, shared) = if is_taken { numbered(&self.places) } else { self.locks.numbered() };
        let step = Step::new("SELECT {s}.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)")
            .with(places)
            .with(shared)
            .with(!is_taken)
            .with(executions)
            .with(records)
            .with(self.version);
        let step = self.rows.parameters(step).with(self.put);
        self.events.parameters(step)
    }
}

/// Takes partitions, for writing or not, before anything is read.
pub(crate) fn lock(places: &BTreeMap<Partition, bool>) -> Step {
    let (numbers, shared) = numbered(places);
    Step::new("SELECT {s}.take($1, $2, TRUE)").with(numbers).with(shared)
}

fn numbered(places: &BTreeMap<Partition, bool>) -> (Vec<i32>, Vec<bool>) {
    places.iter().map(|(partition, is_written)| (place(*partition), !is_written)).unzip()
}

/// The execution in whose row a key stands, or looks for a place first.
fn row_of(key: &Key) -> Option<ExecutionId> {
    match Address::of(key) {
        Address::Execution(id) => Some(id),
        Address::Record(_) => None,
    }
}

/// What stands in rows of its own although it could stand beside its execution.
fn new_cells(facts: &Facts, id: ExecutionId) -> [Cell; Satellite::ALL.len()] {
    Satellite::ALL.map(|satellite| {
        let own = facts.get(&Address::Record(satellite.key(id))).cloned().flatten();
        if own.is_some() { Cell::Elsewhere } else { Cell::Absent }
    })
}
