//! What is stored is what was committed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use ff_core::backend::suspension::SuspendOutcome;
use ff_core::handle::{BackendTag, Handle};
use ff_core::token::SealKey;
use ff_engine::key::Key;
use ff_engine::records::{Dedup, DedupValue, KeyringRecord, Record};

use crate::checker::Mirror;
use crate::invariants::Invariant;
use crate::world::World;

/// Compares all records of the store with those the commits tell of.
pub(crate) async fn is_as_committed(world: &World) {
    let stored = match world.deployment().records().await {
        Ok(records) => records.into_iter().map(|record| (record.key(), record)).collect(),
        Err(error) => return world.checker().report(Invariant::SoundAnswers, format!("records: {error}")),
    };
    let stray = stray(&stored, world.seen().mirror(), world.deployment().tag());
    world.checker().expect(stray.is_none(), Invariant::SoundAnswers, || stray.unwrap_or_default());
}

fn stray(stored: &BTreeMap<Key, Record>, mirror: &Mirror, tag: BackendTag) -> Option<String> {
    let told = mirror.records();
    let seal = mirror.get::<KeyringRecord>(&Key::keyring()).and_then(|record| record.ring.handle_key.clone());
    let keys: BTreeSet<&Key> = stored.keys().chain(told.keys()).collect();
    keys.into_iter().find_map(|key| {
        let told = told.get(key).map(|record| sealed_by(tag, seal.as_ref(), record));
        let same = stored.get(key) == told.as_deref();
        (!same).then(|| format!("{key:?}: stored {:?}, committed {told:?}", stored.get(key)))
    })
}

/// A record as the store with this tag would write it: a remembered answer may hold a handle, and a handle names its store.
fn sealed_by<'r>(tag: BackendTag, seal: Option<&SealKey>, record: &'r Record) -> Cow<'r, Record> {
    let resealed = || {
        let Record::Dedup(dedup) = record else { return None };
        let DedupValue::Suspend(outcome) = &dedup.value else { return None };
        let SuspendOutcome::Suspended { details, handle } = &**outcome else { return None };
        let handle = Handle::seal(tag, &handle.open(handle.backend, seal?).ok()?, seal?);
        let outcome = SuspendOutcome::Suspended { details: details.clone(), handle };
        Some(Record::from(Dedup { value: DedupValue::Suspend(Box::new(outcome)), ..Dedup::clone(dedup) }))
    };
    resealed().map_or(Cow::Borrowed(record), Cow::Owned)
}
