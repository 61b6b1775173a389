//! Items that fail again and again are left alone for a while, so that they cost little and hide nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ff_core::TimestampMs;

use crate::index::{DueKind, Index, Position};
use crate::key::Key;

/// Failures in a row before an item is left alone.
const FAILURES_MAX: u32 = 3;

/// Passes for which it is left alone.
const PASSES_SKIPPED: u64 = 10;

/// After how long a failed item is tried again by those who go by time; doubles with every failure in a row.
const PAUSE_FIRST_MS: u64 = 100;

/// The longest pause.
const PAUSE_MAX_MS: u64 = 5 * 60 * 1000;

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
    retry_at: TimestampMs,
    why: String,
}

/// An item that could not be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingItem {
    /// What came due.
    pub kind: DueKind,
    /// The record.
    pub key: Key,
    /// How often in a row it failed.
    pub failures: u32,
    /// When it is tried again.
    pub retry_at: TimestampMs,
    /// Why it failed the last time.
    pub why: String,
}

impl FailingItem {
    /// Whether it failed so often that it is not expected to succeed by itself.
    #[must_use]
    pub const fn is_poisoned(&self) -> bool {
        self.failures >= FAILURES_MAX
    }
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

    /// Whether the item is left alone at this time.
    pub(super) fn rests(&self, kind: DueKind, key: &Key, now: TimestampMs) -> bool {
        let failures = self.lock();
        !failures.items.is_empty()
            && failures.items.get(&(kind, key.clone())).is_some_and(|failing| !failing.retry_at.is_due(now))
    }

    /// When the next of the items that failed is tried again.
    pub(crate) fn next_retry(&self, kinds: &[DueKind]) -> Option<TimestampMs> {
        let failures = self.lock();
        failures.items.iter().filter(|((kind, _), _)| kinds.contains(kind)).map(|(_, failing)| failing.retry_at).min()
    }

    /// A pass over everything that was due at `now` is done: what should have been tried and was not is not due any more.
    pub(crate) fn forget_gone(&self, kinds: &[DueKind], now: TimestampMs) {
        let mut failures = self.lock();
        failures.items.retain(|(kind, _), failing| !kinds.contains(kind) || !failing.retry_at.is_due(now));
    }

    /// Items that failed and are to be tried again, worst first.
    pub(crate) fn failing(&self) -> Vec<FailingItem> {
        let failures = self.lock();
        let item = |((kind, key), failing): (&(DueKind, Key), &Failing)| FailingItem {
            kind: *kind,
            key: key.clone(),
            failures: failing.in_a_row,
            retry_at: failing.retry_at,
            why: failing.why.clone(),
        };
        let mut all: Vec<_> = failures.items.iter().map(item).collect();
        all.sort_by_key(|item| std::cmp::Reverse(item.failures));
        all
    }

    /// How many items failed so often that they are not expected to succeed by themselves.
    pub(crate) fn poisoned(&self) -> usize {
        self.lock().items.values().filter(|failing| failing.in_a_row >= FAILURES_MAX).count()
    }

    /// The item failed in this pass.
    pub(super) fn failed(&self, kind: DueKind, key: Key, now: TimestampMs, why: &str) {
        let mut failures = self.lock();
        let pass = failures.pass;
        let failing = failures.items.entry((kind, key)).or_default();
        failing.in_a_row += 1;
        failing.last_pass = pass;
        failing.retry_at = now.plus(pause_ms(failing.in_a_row));
        why.clone_into(&mut failing.why);
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

fn pause_ms(failures: u32) -> u64 {
    PAUSE_FIRST_MS.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(PAUSE_MAX_MS)
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
            poison.failed(DueKind::Delay, key.clone(), TimestampMs(0), "no");
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
            poison.failed(DueKind::Delay, key.clone(), TimestampMs(0), "no");
        }
        poison.cleared(DueKind::Delay, &key);
        poison.failed(DueKind::Delay, key.clone(), TimestampMs(0), "no");
        assert!(!poison.skips(DueKind::Delay, &key));
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        assert_eq!([1, 2, 3, 5].map(pause_ms), [100, 200, 400, 1_600]);
        assert_eq!(pause_ms(60), PAUSE_MAX_MS);
    }

    #[test]
    fn an_item_rests_until_its_time_and_is_forgotten_when_it_is_gone() {
        let poison = Poison::default();
        let key = Key::deployment();
        poison.failed(DueKind::Delay, key.clone(), TimestampMs(1_000), "no");
        assert!(poison.rests(DueKind::Delay, &key, TimestampMs(1_099)));
        assert!(!poison.rests(DueKind::Delay, &key, TimestampMs(1_100)));
        assert_eq!(poison.next_retry(&[DueKind::Delay]), Some(TimestampMs(1_100)));
        assert_eq!(poison.next_retry(&[DueKind::Deadline]), None);
        poison.forget_gone(&[DueKind::Delay], TimestampMs(1_099));
        assert_eq!(poison.failing().len(), 1);
        poison.forget_gone(&[DueKind::Delay], TimestampMs(1_100));
        assert_eq!(poison.failing(), []);
    }
}
