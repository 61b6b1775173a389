//! What a change does to indexes.

use ff_engine::index::{Entry, Index};
use ff_engine::key::{Key, Name};
use ff_engine::overlay::Overlay;
use ff_engine::records::Record;

use crate::address::{Address, Satellite};
use crate::tables::{self, Beside, Facts};

/// Whether a write must know what it takes the place of: what shares a row, and what may stand in an index.
pub(super) const fn replaces(key: &Key) -> bool {
    key.may_be_listed() || Satellite::of(key).is_some()
}

/// The record of a key as it was stored.
pub(super) fn stored(facts: &Facts, key: &Key) -> Option<Record> {
    let row = |address: &Address| facts.get(address).and_then(Option::as_deref);
    let own = || row(&Address::Record(key.clone()))?.record.clone().ok();
    match (&key.name, Satellite::of(key)) {
        (Name::Execution(id), _) => row(&Address::Execution(*id))?.record.clone().ok(),
        (_, Some((id, satellite))) => match tables::beside(row(&Address::Execution(id)), satellite) {
            Beside::Nothing => None,
            Beside::Bytes(bytes) => ff_engine::codec::decode_record(key, &bytes).ok(),
            Beside::OwnRow => own(),
        },
        _ => own(),
    }
}

/// The record of a key as it was decided, or else as it was stored.
pub(super) fn before(facts: &Facts, decided: &Overlay, key: &Key) -> Option<Record> {
    match decided.changes.get(key) {
        Some(change) => change.clone(),
        None => stored(facts, key),
    }
}

/// Whether a record stands in an index.
pub(super) fn stands_in(record: &Record, index: &Index) -> bool {
    record.entries().iter().any(|entry| entry.index == *index)
}

/// The list that a record stands in by its key alone.
fn followed(key: &Key) -> Option<Index> {
    match key.name {
        Name::Attempt(id, _) => Some(Index::AttemptsOf(id)),
        Name::Frame(id, attempt, _) => Some(Index::FramesOf(id, attempt)),
        _ => None,
    }
}

/// The entries that only one of two records has: those that go, and those that come.
pub(super) fn moved(before: Option<&Record>, after: Option<&Record>) -> (Vec<Entry>, Vec<Entry>) {
    let before = before.map(Record::entries).unwrap_or_default();
    let after = after.map(Record::entries).unwrap_or_default();
    let gone = before.iter().filter(|entry| !after.contains(entry)).cloned().collect();
    let come = after.into_iter().filter(|entry| !before.contains(entry)).collect();
    (gone, come)
}

/// The indexes with an owner that a change enters or leaves.
pub(super) fn touched(key: &Key, before: Option<&Record>, after: Option<&Record>) -> Vec<Index> {
    let (gone, come) = moved(before, after);
    let indexes = gone.into_iter().chain(come).map(|entry| entry.index).chain(followed(key));
    indexes.filter(|index| index.owner().is_some()).collect()
}
