//! Items that fail again and again are left alone for a while, so that they cost little and hide nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::index::{DueKind, Index, Position};
use crate::key::Key;

/// Failures in a row before an item is left alone.
const FAILURES_MAX: u32 = 3;

/// Passes for which it is left alone.
const PASSES_SKIPPED: u64 = 10;

/// Items remembered; beyond that the oldest are forgotten, which costs one more try.
const REMEMBERED_MAX: usize = 10_000;

/// Items that failed, by kind and record.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    inner: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    pass: u64,
    items: BTreeMap<(DueKind, Key), Failing>,
    /// Where the next pass over some indexes begins, when the last one did not come to their end.
    places: BTreeMap<Vec<Index>, Position>,
}

#[derive(Debug, Default)]
struct Failing {
    in_a_row: u32,
    last_pass: u64,
}

impl Poison {
    fn lock(&self) -> MutexGuard<'_, Failures> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new pass begins.
    pub(super) fn begin_pass(&self) {
        self.lock().pass += 1;
    }

    /// Where a pass over these indexes begins: behind what the last one looked at in vain, else with the first entry.
    pub(super) fn take_place(&self, indexes: &[Index]) -> Option<Position> {
        self.lock().places.remove(indexes)
    }

    /// The pass stopped here without coming to an end.
    pub(super) fn keep_place(&self, indexes: &[Index], place: Option<Position>) {
        if let Some(place) = place {
            self.lock().places.insert(indexes.to_vec(), place);
        }
    }

    /// Whether this pass leaves the item alone.
    pub(super) fn skips(&self, kind: DueKind, key: &Key) -> bool {
        let failures = self.lock();
        let Some(failing) = failures.items.get(&(kind, key.clone())) else { return false };
        failing.in_a_row >= FAILURES_MAX && failures.pass <= failing.last_pass + PASSES_SKIPPED
    }

    /// The item failed in this pass.
    pub(super) fn failed(&self, kind: DueKind, key: Key) {
        let mut failures = self.lock();
        let pass = failures.pass;
        let failing = failures.items.entry((kind, key)).or_default();
        failing.in_a_row += 1;
        failing.last_pass = pass;
        if failures.items.len() > REMEMBERED_MAX
            && let Some(oldest) = failures.items.iter().min_by_key(|(_, item)| item.last_pass).map(|(id, _)| id.clone())
        {
            failures.items.remove(&oldest);
        }
    }

    /// The item went through.
    pub(super) fn cleared(&self, kind: DueKind, key: &Key) {
        let mut failures = self.lock();
        if !failures.items.is_empty() {
            failures.items.remove(&(kind, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_left_alone_after_three_failures_and_tried_again_after_ten_passes() {
        let poison = Poison::default();
        let key = Key::deployment();
        for _ in 0..3 {
            poison.begin_pass();
            assert!(!poison.skips(DueKind::Delay, &key));
            poison.failed(DueKind::Delay, key.clone());
        }
        for _ in 0..10 {
            poison.begin_pass();
            assert!(poison.skips(DueKind::Delay, &key));
            assert!(!poison.skips(DueKind::Deadline, &key));
        }
        poison.begin_pass();
        assert!(!poison.skips(DueKind::Delay, &key));
    }

    #[test]
    fn a_success_forgets_earlier_failures() {
        let poison = Poison::default();
        let key = Key::deployment();
        for _ in 0..2 {
            poison.failed(DueKind::Delay, key.clone());
        }
        poison.cleared(DueKind::Delay, &key);
        poison.failed(DueKind::Delay, key.clone());
        assert!(!poison.skips(DueKind::Delay, &key));
    }
}
