//! What a change does to indexes.

use std::sync::Arc;

use ff_engine::index::{Entry, Index};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;

use super::batch::Accepted;
use crate::address::{Address, Entries, Satellite};
use crate::tables::{self, Beside, Facts};
use ff_engine::hash::HashMap;

/// Whether a write must know what it takes the place of: what shares a row, and what may stand in an index.
pub(super) const fn replaces(key: &Key) -> bool {
    key.may_be_listed() || Satellite::of(key).is_some()
}

/// Where records stand; nowhere, if nothing is said.
#[derive(Debug, Default)]
pub(super) struct AllEntries(HashMap<Key, Entries>);

impl AllEntries {
    pub(super) fn get(&self, key: &Key) -> Option<&Entries> {
        self.0.get(key)
    }

    pub(super) fn of(&self, key: &Key) -> Entries {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// Notes where a record stands, and says so.
    pub(super) fn note(&mut self, key: &Key, record: Option<&Record>) -> Entries {
        if !key.may_be_listed() {
            return Entries::default();
        }
        let entries: Entries = record.map(Record::entries).unwrap_or_default().into();
        self.0.insert(key.clone(), Arc::clone(&entries));
        entries
    }
}

/// Where the stored record of a key stands.
pub(super) fn stored_entries(facts: &Facts, key: &Key) -> Entries {
    if !key.may_be_listed() {
        return Entries::default();
    }
    let row = |address: &Address| facts.get(address).and_then(Option::as_deref);
    let own = || row(&Address::Record(key.clone())).map(|row| row.entries().clone()).unwrap_or_default();
    match (&key.name, Satellite::of(key)) {
        (Name::Execution(id), _) => row(&Address::Execution(*id)).map(|row| row.entries().clone()).unwrap_or_default(),
        (_, Some((id, satellite))) => match tables::beside(row(&Address::Execution(id)), satellite) {
            Beside::Nothing => Entries::default(),
            Beside::Bytes(bytes) => {
                ff_engine::codec::decode_record(key, bytes).map(|record| record.entries()).unwrap_or_default().into()
            }
            Beside::OwnRow => own(),
        },
        _ => own(),
    }
}

/// Where the record of a key stands as it was decided, or else as it is stored.
pub(super) fn entries_before(facts: &Facts, accepted: &Accepted, key: &Key) -> Entries {
    accepted.entries.get(key).cloned().unwrap_or_else(|| stored_entries(facts, key))
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
pub(super) fn touched(key: &Key, before: &[Entry], after: &[Entry]) -> Vec<Index> {
    let has_owner = |entry: &&Entry| entry.index.owner().is_some();
    let gone = before.iter().filter(has_owner).filter(|entry| !after.contains(entry));
    let come = after.iter().filter(has_owner).filter(|entry| !before.contains(entry));
    gone.chain(come).map(|entry| entry.index.clone()).chain(followed(key)).collect()
}
