//! From decisions to statements.

use std::collections::BTreeSet;
use std::sync::Arc;

use ff_core::ids::{ExecutionId, Namespace};
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::awaited_at;
use ff_engine::codec::{encode_event, encode_key, encode_record, encode_shared_record};
use ff_engine::event::Event;
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Entry, Index, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;

use super::changes::{self, Accepted, Change, Changes, RowChange};
use super::locks::{self, Hold, Locks, Places};
use super::mirrors::{Moved, is_queue};
use crate::address::{Address, Cell, Entries, Satellite, Stored};
use crate::indexes::Place;
use crate::session::Step;
use crate::tables::created::{self, Creation};
use crate::tables::entry::{self, RawEntry};
use crate::tables::execution;
use crate::tables::{Facts, event, journal, record};
use crate::young::{Birth, Line, Pass};

/// The statement of nearly every commit; `{s}` stands for the schema.
pub(crate) const COMMIT: &str = "SELECT {s}.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// What is told after a commit.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) topics: HashSet<Topic>,
    /// When the earliest new entry comes due.
    pub(crate) due_at: Option<TimestampMs>,
}

/// In whose name a commit is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    /// The owner of the journal that it takes for granted.
    pub(crate) owner: i64,
    /// The number of its line.
    pub(crate) line: Option<u64>,
}

/// What a commit has to do with young executions.
#[derive(Default)]
pub(super) struct Youth {
    /// Those that it depends on, and the versions that they must have.
    pub(super) seen: Vec<(ExecutionId, i64)>,
    /// Those that must not be young, and are not in the table.
    pub(super) absent: Vec<ExecutionId>,
    /// Those that may be young, and get another version if they are.
    pub(super) touched: BTreeSet<ExecutionId>,
    /// What they are after it; none for those that are gone.
    pub(super) after: Vec<(ExecutionId, Option<Arc<Stored>>)>,
}

/// One commit.
#[derive(Default)]
pub(crate) struct Plan {
    /// Partitions that are read, and whether they are written.
    pub(super) places: Places,
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
    line: Line,
    pub(super) youth: Youth,
    pub(super) news: News,
    /// What rows hold after the commit.
    pub(crate) after: Vec<(Address, Option<Arc<Stored>>)>,
    /// What stood or stands in queues.
    pub(super) moved: Vec<Moved>,
}

impl Plan {
    /// The plan for decisions that are based on these facts. `version` is new. With a pass, executions may be born young.
    pub(super) fn new(
        facts: &Facts,
        accepted: Accepted,
        newborn: &HashSet<ExecutionId>,
        version: i64,
        pass: Option<&Pass>,
    ) -> Result<Self> {
        let mut plan = Self { version, ..Self::default() };
        let Accepted { changes, events, read, .. } = accepted;
        plan.expect(facts, &changes, read, newborn);
        plan.take(facts, &changes, newborn);
        plan.remember_touched(facts);
        let Changes { rows, records } = changes;
        for (key, change) in in_order(records) {
            plan.save(&key, change)?;
        }
        for (id, change) in in_order(rows) {
            plan.save_row(facts, id, *change, newborn, pass)?;
        }
        for event in &events {
            plan.append(event)?;
        }
        Ok(plan)
    }

    /// The plan for young executions that come to their table.
    pub(crate) fn settling(rows: &[(ExecutionId, Arc<Stored>)], version: i64) -> Self {
        let mut plan = Self { version, ..Self::default() };
        for (id, row) in rows {
            plan.rows.add(*id, row, namespace_of(row.entries()));
            if !row.has_ended() {
                let settled = row.at_version(version).born(None);
                plan.after.push((Address::Execution(*id), Some(Arc::new(settled))));
            }
        }
        plan
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
    fn expect(&mut self, facts: &Facts, changes: &Changes, mut read: HashSet<Address>, newborn: &HashSet<ExecutionId>) {
        let is_stored = |id: ExecutionId| facts.get(&Address::Execution(id)).is_some_and(Option::is_some);
        read.retain(|address| !matches!(address, Address::Execution(id) if changes.rows.contains_key(id)));
        let written = changes.records.keys().filter(|key| key.may_be_listed()).cloned().map(Address::Record);
        // Where a row is updated, the update itself looks at the version.
        let put_or_deleted = changes.rows.iter().filter(|(id, row)| !is_stored(**id) || row.is_end());
        let replaced = put_or_deleted.map(|(id, _)| Address::Execution(*id));
        // What has a row of its own although it could stand beside its execution.
        let is_beside = |address: &&Address| match address {
            Address::Record(key) => Satellite::of(key).is_some_and(|(id, _)| changes.rows.contains_key(&id)),
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
            match (&address, is_young(facts, &address)) {
                (Address::Execution(id), true) => self.youth.seen.push((*id, version)),
                _ => {
                    if let (Address::Execution(id), Stored::NO_VERSION) = (&address, version) {
                        self.youth.absent.push(*id);
                    }
                    self.locks.take_address(&address, false);
                    expected.push((address, version));
                }
            }
        }
        self.expected = Arc::new(expected);
    }

    /// Takes the places of what is written.
    fn take(&mut self, facts: &Facts, changes: &Changes, newborn: &HashSet<ExecutionId>) {
        for (id, row) in &changes.rows {
            self.places.insert(id.partition(), true);
            // Nobody else knows of what is only now being born, and what is young is reserved.
            if !newborn.contains(id) && !is_young(facts, &Address::Execution(*id)) {
                self.locks.take_execution(*id, true);
            }
            row.each(*id).for_each(|(key, change)| self.announce(changes, &key, change));
        }
        for (key, change) in &changes.records {
            self.places.insert(key.partition, true);
            if !key.execution_id().is_some_and(|id| newborn.contains(&id)) {
                self.locks.take(key, true);
            }
            self.announce(changes, key, change);
        }
    }

    /// Tells those who wait for a change. Entering or leaving a range is a change of its owner, too.
    fn announce(&mut self, changes: &Changes, key: &Key, change: &Change) {
        self.news.topics.extend(change.new.iter().flat_map(Record::topics));
        for owner in changes::touched(key, &change.before, &change.after).filter_map(|index| index.owner()) {
            self.locks.take(&owner, true);
            match Address::of(&owner) {
                Address::Execution(id) if changes.rows.contains_key(&id) => {}
                Address::Execution(id) => drop(self.touched.insert(id)),
                Address::Record(key) if changes.records.contains_key(&key) => {}
                Address::Record(key) => drop(self.touched_records.insert(key)),
            }
        }
    }

    /// What touched owners hold after the commit: the same under another version.
    fn remember_touched(&mut self, facts: &Facts) {
        self.youth.touched = self.touched.clone();
        self.touched.retain(|id| !is_young(facts, &Address::Execution(*id)));
        let executions = self.youth.touched.iter().map(|id| Address::Execution(*id));
        let records = self.touched_records.iter().map(|key| Address::Record(key.clone()));
        for address in executions.chain(records).collect::<Vec<_>>() {
            let known = facts.get(&address).and_then(Option::as_deref);
            if let (Address::Execution(id), Some(stored)) = (&address, known) {
                self.note_move(&Key::execution(*id), stored.entries(), stored.entries());
            }
            match (&address, known) {
                (Address::Execution(id), Some(stored)) if stored.birth.is_some() => {
                    self.youth.seen.push((*id, stored.version));
                }
                _ => {
                    let after = known.map(|stored| Arc::new(stored.at_version(self.version)));
                    self.after.push((address, after));
                }
            }
        }
    }

    /// Writes or removes a record that has a row of its own.
    fn save(&mut self, key: &Key, change: Change) -> Result<()> {
        self.move_entries(key, &change.before, &change.after);
        match change.new {
            Some(record) => self.put_record(key, encode_shared_record(&record)?, record, change.after),
            None => self.remove_record(key),
        }
        Ok(())
    }

    fn put_record(&mut self, key: &Key, body: Arc<[u8]>, record: Record, entries: Entries) {
        let stored = Stored::written(self.version, record, Arc::clone(&body), entries);
        self.after.push((Address::Record(key.clone()), Some(Arc::new(stored))));
        self.put.push(record::Write::new(key, body));
    }

    fn remove_record(&mut self, key: &Key) {
        self.after.push((Address::Record(key.clone()), None));
        self.removed.push(record::stored_key(key));
    }

    /// Writes what changes of an execution and of what stands beside it.
    fn save_row(
        &mut self,
        facts: &Facts,
        id: ExecutionId,
        wanted: RowChange,
        newborn: &HashSet<ExecutionId>,
        pass: Option<&Pass>,
    ) -> Result<()> {
        let address = Address::Execution(id);
        let stored = facts.get(&address).and_then(Option::as_deref);
        let RowChange { execution, cells } = wanted;
        let mut row = match (stored, execution) {
            (_, Some(Change { new: Some(record), before, after })) => {
                self.move_entries(&Key::execution(id), &before, &after);
                let body = encode_shared_record(&record)?;
                let mut row = Stored::written(self.version, record, body, after);
                row.cells = match stored {
                    Some(stored) => stored.cells.clone(),
                    None if newborn.contains(&id) => Default::default(),
                    None => new_cells(facts, id),
                };
                row
            }
            (Some(stored), None) => {
                self.note_move(&Key::execution(id), stored.entries(), stored.entries());
                stored.at_version(self.version)
            }
            (_, Some(Change { new: None, .. })) | (None, None) => return self.without_row(id, cells, stored),
        };
        for ((satellite, change), cell) in Satellite::ALL.into_iter().zip(cells).zip(&mut row.cells) {
            if let Some(change) = change {
                self.place(satellite, &satellite.key(id), change, cell)?;
            }
        }
        let birth = match stored {
            Some(stored) => stored.birth,
            None => pass.and_then(Pass::bear),
        };
        match (stored, birth) {
            (_, Some(birth)) => self.save_young(id, birth, stored, row),
            (Some(stored), None) => {
                self.note_creation(id, stored.entries(), row.entries());
                self.rows.update(id, stored.version, &row);
                self.after.push((address, Some(Arc::new(row))));
            }
            (None, None) => {
                self.rows.add(id, &row, namespace_of(row.entries()));
                self.after.push((address, Some(Arc::new(row))));
            }
        }
        Ok(())
    }

    /// Writes a row that stays in the journal for now.
    fn save_young(&mut self, id: ExecutionId, birth: Birth, stored: Option<&Stored>, row: Stored) {
        self.youth.seen.push((id, stored.map_or(Stored::NO_VERSION, |stored| stored.version)));
        self.line.write(id, birth, stored, &row);
        self.youth.after.push((id, Some(Arc::new(row.born(Some(birth))))));
    }

    /// When an execution was created hardly ever changes.
    fn note_creation(&mut self, id: ExecutionId, before: &[Entry], after: &[Entry]) {
        if creation(before) != creation(after) {
            Creation::of(before).into_iter().for_each(|creation| self.forgotten.push(id, creation));
            Creation::of(after).into_iter().for_each(|creation| self.created.push(id, creation));
        }
    }

    /// Puts a record into the column of its execution, or into a row of its own if it is large.
    fn place(&mut self, satellite: Satellite, key: &Key, change: Change, cell: &mut Cell) -> Result<()> {
        self.move_entries(key, &change.before, &change.after);
        let was_elsewhere = matches!(cell, Cell::Elsewhere);
        *cell = match change.new {
            None => Cell::Absent,
            Some(record) => {
                let body = encode_record(&record)?;
                if body.len() > satellite.bytes_max() {
                    self.put_record(key, body.into(), record, change.after);
                    Cell::Elsewhere
                } else {
                    Cell::written(record, body)
                }
            }
        };
        if was_elsewhere && !matches!(cell, Cell::Elsewhere) {
            self.remove_record(key);
        }
        Ok(())
    }

    /// Removes an execution's row, if there is one; what stood beside it and stays gets a row of its own.
    fn without_row(
        &mut self,
        id: ExecutionId,
        cells: [Option<Change>; Satellite::ALL.len()],
        stored: Option<&Stored>,
    ) -> Result<()> {
        for (satellite, change) in Satellite::ALL.into_iter().zip(cells) {
            let key = satellite.key(id);
            let left = stored.map_or(&Cell::Absent, |stored| &stored.cells[satellite as usize]);
            match (change, left) {
                (Some(change), _) => self.save(&key, change)?,
                (None, Cell::Here(held)) => {
                    self.put.push(record::Write::new(&key, held.bytes().into()));
                    self.after.push((Address::Record(key), None));
                }
                (None, Cell::Absent | Cell::Elsewhere) => {}
            }
        }
        let Some(stored) = stored else { return Ok(()) };
        self.move_entries(&Key::execution(id), stored.entries(), &Entries::default());
        if let Some(birth) = stored.birth {
            self.line.write_gone(id, birth);
            self.youth.after.push((id, None));
            return Ok(());
        }
        self.note_creation(id, stored.entries(), &[]);
        self.deleted.push(id);
        self.after.push((Address::Execution(id), None));
        Ok(())
    }

    /// Columns and keys carry their own entries; all others have rows.
    fn move_entries(&mut self, key: &Key, before: &Entries, after: &Entries) {
        self.note_move(key, before, after);
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
    /// Where partitions are held already, more of them are taken only if nobody else has them: to wait would break the order in which
    /// everybody takes them.
    pub(crate) fn into_steps(mut self, hold: &Hold, signature: Signature) -> Vec<Step> {
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
        std::iter::once(self.into_commit(hold, signature)).chain(others.into_iter().flatten()).collect()
    }

    /// Takes the places, makes sure that nothing has changed, writes, and asks for the time.
    fn into_commit(self, hold: &Hold, signature: Signature) -> Step {
        let (mut executions, mut records) = (Vec::new(), Vec::new());
        for (address, version) in &*self.expected {
            match address {
                Address::Execution(id) => executions.push(execution::Seen::new(*id, *version)),
                Address::Record(key) => records.push(record::Seen::new(key, *version)),
            }
        }
        let (places, shared) = match hold {
            Hold::Nothing => self.locks.numbered(),
            Hold::Partitions(_) => locks::partitions(&self.places),
            Hold::Everything => Default::default(),
        };
        let step = Step::new(COMMIT)
            .with(places)
            .with(shared)
            .with(hold.is_nothing())
            .with(executions)
            .with(records)
            .with(self.version);
        let step = self.rows.parameters(step).with(self.put);
        self.events
            .parameters(step)
            .with(signature.owner)
            .with(signature.line.map(u64::cast_signed))
            .with(journal::in_parts(self.line.bytes()))
    }
}

/// Takes partitions, for writing or not, before anything is read.
pub(crate) fn lock(places: &Places) -> Step {
    let (numbers, shared) = locks::partitions(places);
    Step::new("SELECT {s}.take($1, $2, TRUE)").with(numbers).with(shared)
}

/// Takes the journal: nobody commits until the end of the transaction.
pub(crate) fn lock_journal() -> Step {
    Step::new("SELECT {s}.take($1, $2, TRUE)").with(vec![locks::JOURNAL]).with(vec![false])
}

/// Whether an execution is known to be young.
fn is_young(facts: &Facts, address: &Address) -> bool {
    facts.get(address).and_then(Option::as_deref).is_some_and(|stored| stored.birth.is_some())
}

/// In the order in which everybody writes.
fn in_order<K: Ord, V>(changes: HashMap<K, V>) -> Vec<(K, V)> {
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    changes
}

/// The entry that says when an execution was created, and in which namespace.
fn creation(entries: &[Entry]) -> Option<&Entry> {
    entries.iter().find(|entry| matches!(entry.index, Index::CreatedIn(_)))
}

fn namespace_of(entries: &[Entry]) -> Option<Namespace> {
    match &creation(entries)?.index {
        Index::CreatedIn(namespace) => Some(namespace.clone()),
        _ => None,
    }
}

/// What stands in rows of its own although it could stand beside its execution.
fn new_cells(facts: &Facts, id: ExecutionId) -> [Cell; Satellite::ALL.len()] {
    Satellite::ALL.map(|satellite| {
        let own = facts.get(&Address::Record(satellite.key(id))).cloned().flatten();
        if own.is_some() { Cell::Elsewhere } else { Cell::Absent }
    })
}
