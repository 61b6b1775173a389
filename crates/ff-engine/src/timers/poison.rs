//! Items that fail again and again are left alone for a while, so that they cost little and hide nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ff_core::TimestampMs;

use super::round::Round;
use crate::index::{DueKind, Index};
use crate::key::Key;

/// Failures in a row before an item is left alone.
const FAILURES_MAX: u32 = 3;

/// Passes for which it is left alone.
const PASSES_SKIPPED: u64 = 10;

/// After how long a failed item is tried again by those who go by time; doubles with every failure in a row.
const PAUSE_FIRST_MS: u64 = 100;

/// The longest pause.
const PAUSE_MAX_MS: u64 = 5 * 60 * 1000;

/// Items remembered; beyond that those are forgotten that are tried again soonest, which costs one more try.
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
    /// The same items by kind and by when they are tried again.
    by_retry: BTreeMap<DueKind, BTreeSet<(TimestampMs, Key)>>,
    /// Rounds over some indexes whose last pass did not come to their end.
    rounds: BTreeMap<Vec<Index>, Round>,
}

impl Failures {
    fn forget(&mut self, kind: DueKind, key: &Key) -> Option<Failing> {
        let failing = self.items.remove(&(kind, key.clone()))?;
        if let Some(times) = self.by_retry.get_mut(&kind) {
            times.remove(&(failing.retry_at, key.clone()));
        }
        Some(failing)
    }

    fn remember(&mut self, kind: DueKind, key: Key, failing: Failing) {
        self.by_retry.entry(kind).or_default().insert((failing.retry_at, key.clone()));
        self.items.insert((kind, key), failing);
        if self.items.len() > REMEMBERED_MAX
            && let Some((_, kind, key)) = self.soonest(&DueKind::ALL).map(|(at, kind, key)| (at, kind, key.clone()))
        {
            self.forget(kind, &key);
        }
    }

    /// The item of some kinds that is tried again first.
    fn soonest(&self, kinds: &[DueKind]) -> Option<(TimestampMs, DueKind, &Key)> {
        let first = |kind: &DueKind| self.by_retry.get(kind)?.first().map(|(at, key)| (*at, *kind, key));
        kinds.iter().filter_map(first).min_by_key(|(at, ..)| *at)
    }
}

#[derive(Debug)]
struct Failing {
    /// None for an item that waits without having failed.
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

    /// The round over these indexes that is to be gone on with.
    pub(super) fn take_round(&self, indexes: &[Index]) -> Option<Round> {
        self.lock().rounds.remove(indexes)
    }

    /// The pass stopped on the way.
    pub(super) fn keep_round(&self, indexes: &[Index], round: Round) {
        self.lock().rounds.insert(indexes.to_vec(), round);
    }

    /// Whether a round over these indexes is on its way.
    pub(crate) fn is_on_its_way(&self, indexes: &[Index]) -> bool {
        self.lock().rounds.contains_key(indexes)
    }

    /// Nothing stands in these indexes: the next round begins at their beginning.
    pub(crate) fn drop_round(&self, indexes: &[Index]) {
        self.lock().rounds.remove(indexes);
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

    /// When the next of the items that failed or wait is tried again.
    pub(crate) fn next_retry(&self, kinds: &[DueKind]) -> Option<TimestampMs> {
        self.lock().soonest(kinds).map(|(at, ..)| at)
    }

    /// A round over everything that was due at `now` is done: what should have been tried and was not is not due any more.
    pub(crate) fn forget_gone(&self, kinds: &[DueKind], now: TimestampMs) {
        let mut failures = self.lock();
        while let Some((kind, key)) =
            failures.soonest(kinds).filter(|(at, ..)| at.is_due(now)).map(|(_, kind, key)| (kind, key.clone()))
        {
            failures.forget(kind, &key);
        }
    }

    /// Items that failed and are to be tried again, worst first; those that only wait are not among them.
    pub(crate) fn failing(&self) -> Vec<FailingItem> {
        let failures = self.lock();
        let item = |((kind, key), failing): (&(DueKind, Key), &Failing)| FailingItem {
            kind: *kind,
            key: key.clone(),
            failures: failing.in_a_row,
            retry_at: failing.retry_at,
            why: failing.why.clone(),
        };
        let failed = failures.items.iter().filter(|(_, failing)| failing.in_a_row > 0);
        let mut all: Vec<_> = failed.map(item).collect();
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
        let in_a_row = failures.forget(kind, &key).map_or(0, |failing| failing.in_a_row) + 1;
        let (last_pass, retry_at) = (failures.pass, now.plus(pause_ms(in_a_row)));
        failures.remember(kind, key, Failing { in_a_row, last_pass, retry_at, why: why.to_owned() });
    }

    /// The item cannot be handled before this time, and nothing is wrong with it.
    pub(super) fn waits(&self, kind: DueKind, key: Key, retry_at: TimestampMs) {
        let mut failures = self.lock();
        failures.forget(kind, &key);
        let last_pass = failures.pass;
        failures.remember(kind, key, Failing { in_a_row: 0, last_pass, retry_at, why: String::new() });
    }

    /// The item went through.
    pub(super) fn cleared(&self, kind: DueKind, key: &Key) {
        let mut failures = self.lock();
        if !failures.items.is_empty() {
            failures.forget(kind, key);
        }
    }
}

fn pause_ms(failures: u32) -> u64 {
    PAUSE_FIRST_MS.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(PAUSE_MAX_MS)
}

#[cfg(test)]
mod tests {
    use ff_core::ids::ExecutionId;
    use uuid::Uuid;

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
    fn beyond_a_number_those_are_forgotten_that_are_tried_again_soonest() {
        let poison = Poison::default();
        let key = |n: usize| Key::execution(ExecutionId::new(0, Uuid::from_u128(n as u128)));
        // The later in the order of keys, the earlier it failed.
        for n in (0..=REMEMBERED_MAX).rev() {
            poison.failed(DueKind::Delay, key(n), TimestampMs((REMEMBERED_MAX - n) as i64), "no");
        }
        assert_eq!(poison.failing().len(), REMEMBERED_MAX);
        assert!(!poison.failing().iter().any(|item| item.key == key(REMEMBERED_MAX)));
        assert_eq!(poison.next_retry(&[DueKind::Delay]), Some(TimestampMs(101)));
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        assert_eq!([1, 2, 3, 5].map(pause_ms), [100, 200, 400, 1_600]);
        assert_eq!(pause_ms(60), PAUSE_MAX_MS);
    }

    #[test]
    fn an_item_that_waits_rests_and_is_no_failing_one() {
        let poison = Poison::default();
        let key = Key::deployment();
        poison.failed(DueKind::Retention, key.clone(), TimestampMs(0), "no");
        poison.waits(DueKind::Retention, key.clone(), TimestampMs(1_000));
        assert!(poison.rests(DueKind::Retention, &key, TimestampMs(999)));
        assert_eq!(poison.next_retry(&[DueKind::Retention]), Some(TimestampMs(1_000)));
        assert_eq!(poison.failing(), []);
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
