//! What was decided, and what that does to indexes.

use std::sync::Arc;

use ff_core::ids::ExecutionId;
use ff_engine::event::Event;
use ff_engine::hash::{HashMap, HashSet};
use ff_engine::index::{Entry, Index};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use crate::address::{Address, Entries, Satellite};
use crate::tables::{self, Beside, Facts};

/// Whether a write must know what it takes the place of: what shares a row, and what may stand in an index.
pub(super) const fn replaces(key: &Key) -> bool {
    key.may_be_listed() || Satellite::of(key).is_some()
}

/// What becomes of a record.
#[derive(Debug)]
pub(super) struct Change {
    /// What its key is to hold.
    pub(super) new: Option<Record>,
    /// Where it stands as it is stored.
    pub(super) before: Entries,
    /// Where it will stand.
    pub(super) after: Entries,
}

/// What becomes of an execution and of what can stand beside it, in the order of [`Satellite`].
#[derive(Debug, Default)]
pub(super) struct RowChange {
    pub(super) execution: Option<Change>,
    pub(super) cells: [Option<Change>; Satellite::ALL.len()],
}

impl RowChange {
    /// Whether nothing is left of the execution itself.
    pub(super) fn is_end(&self) -> bool {
        self.execution.as_ref().is_some_and(|change| change.new.is_none())
    }

    /// What becomes of each of them.
    pub(super) fn each(&self, id: ExecutionId) -> impl Iterator<Item = (Key, &Change)> {
        let own = self.execution.iter().map(move |change| (Key::execution(id), change));
        let cells = Satellite::ALL.into_iter().zip(&self.cells);
        own.chain(cells.filter_map(move |(satellite, change)| {
            let change = change.as_ref()?;
            Some((satellite.key(id), change))
        }))
    }
}

/// What becomes of all that is to be written.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) rows: HashMap<ExecutionId, Box<RowChange>>,
    /// Of records that never stand beside an execution.
    pub(super) records: HashMap<Key, Change>,
}

impl Changes {
    /// What becomes of the record that a key is a part of, if anything.
    pub(super) fn get(&self, key: &Key) -> Option<&Change> {
        match place(key) {
            Some((id, None)) => self.rows.get(&id)?.execution.as_ref(),
            Some((id, Some(satellite))) => self.rows.get(&id)?.cells[satellite as usize].as_ref(),
            None => self.records.get(key),
        }
    }

    fn set(&mut self, key: Key, change: Change) {
        match place(&key) {
            Some((id, None)) => self.rows.entry(id).or_default().execution = Some(change),
            Some((id, Some(satellite))) => self.rows.entry(id).or_default().cells[satellite as usize] = Some(change),
            None => drop(self.records.insert(key, change)),
        }
    }

    /// What becomes of each record.
    pub(super) fn each(&self) -> impl Iterator<Item = (Key, &Change)> {
        let rows = self.rows.iter().flat_map(|(id, row)| row.each(*id));
        rows.chain(self.records.iter().map(|(key, change)| (key.clone(), change)))
    }
}

/// The execution in whose row a key stands or could stand, and where in it.
const fn place(key: &Key) -> Option<(ExecutionId, Option<Satellite>)> {
    match (&key.name, Satellite::of(key)) {
        (Name::Execution(id) | Name::Fence(id), _) => Some((*id, None)),
        (_, Some((id, satellite))) => Some((id, Some(satellite))),
        _ => None,
    }
}

/// What was decided so far.
#[derive(Default)]
pub(super) struct Accepted {
    pub(super) changes: Changes,
    pub(super) events: Vec<Event>,
    /// The indexes with an owner that were entered or left.
    pub(super) touched: HashSet<Index>,
    /// The rows that the decisions depend on, without those of executions that are written.
    pub(super) read: HashSet<Address>,
    /// Empty; entries are gathered here before it is known how many there are.
    draft: Vec<Entry>,
}

impl Accepted {
    /// Takes over what a key is to hold.
    pub(super) fn change(&mut self, facts: &Facts, key: Key, new: Option<Record>) {
        let after = self.entries_of(&key, new.as_ref());
        let (before, left) = match self.changes.get(&key) {
            Some(earlier) => (Arc::clone(&earlier.before), Arc::clone(&earlier.after)),
            None => {
                let stored = stored_entries(facts, &key);
                (Arc::clone(&stored), stored)
            }
        };
        self.touched.extend(touched(&key, &left, &after));
        self.changes.set(key, Change { new, before, after });
    }

    fn entries_of(&mut self, key: &Key, record: Option<&Record>) -> Entries {
        if let Some(record) = record
            && key.may_be_listed()
        {
            record.add_entries(&mut self.draft);
        }
        if self.draft.is_empty() { Entries::default() } else { self.draft.drain(..).collect() }
    }

    /// Depends on what a key holds as it is stored. A row that is written is made sure of with that.
    pub(super) fn depend(&mut self, facts: &Facts, key: &Key) {
        let address = Address::of(key);
        if let Address::Execution(id) = &address {
            if self.changes.rows.contains_key(id) {
                return;
            }
            let row = facts.get(&address).and_then(Option::as_deref);
            let has_own_row = |satellite| matches!(tables::beside(row, satellite), Beside::OwnRow);
            if Satellite::of(key).is_some_and(|(_, satellite)| has_own_row(satellite)) {
                self.read.insert(Address::Record(key.clone()));
            }
        }
        self.read.insert(address);
    }
}

/// Where the stored record of a key stands.
fn stored_entries(facts: &Facts, key: &Key) -> Entries {
    if !key.may_be_listed() {
        return Entries::default();
    }
    let row = |address: &Address| facts.get(address).and_then(Option::as_deref);
    let own = || row(&Address::Record(key.clone())).map(|row| row.entries().clone()).unwrap_or_default();
    match (&key.name, Satellite::of(key)) {
        (Name::Execution(id), _) => row(&Address::Execution(*id)).map(|row| row.entries().clone()).unwrap_or_default(),
        (_, Some((id, satellite))) => match tables::beside(row(&Address::Execution(id)), satellite) {
            Beside::Nothing => Entries::default(),
            Beside::Held(held) => held.record(key).map(|record| record.entries()).unwrap_or_default().into(),
            Beside::OwnRow => own(),
        },
        _ => own(),
    }
}

/// The list that a record stands in by its key alone.
fn followed(key: &Key) -> Option<Index> {
    match key.name {
        Name::Attempt(id, _) => Some(Index::AttemptsOf(id)),
        Name::Frame(id, attempt, _) => Some(Index::FramesOf(id, attempt)),
        _ => None,
    }
}

/// The indexes with an owner that a change enters or leaves.
pub(super) fn touched<'e>(key: &Key, before: &'e [Entry], after: &'e [Entry]) -> impl Iterator<Item = Index> {
    let has_owner = |entry: &&Entry| entry.index.owner().is_some();
    let gone = before.iter().filter(has_owner).filter(|entry| !after.contains(entry));
    let come = after.iter().filter(has_owner).filter(|entry| !before.contains(entry));
    gone.chain(come).map(|entry| entry.index.clone()).chain(followed(key))
}
