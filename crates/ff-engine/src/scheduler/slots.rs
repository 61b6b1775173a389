//! What a quota keeps: who holds a slot, and how full its windows are. Every change is one commit in the quota's partition.

use ff_core::backend::quotas::CheckAdmissionResult;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{ExecutionId, LeaseEpoch, QuotaPolicyId};
use ff_core::partition::Partition;
use ff_core::rules::quotas::{AdmissionFacts, AdmissionLimits, admit};
use ff_core::{Result, TimestampMs};
use uuid::Uuid;

use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Admission, Continuation, ContinuationWork, QuotaUsage, WindowEntry};
use crate::store::{Op, Tx};

/// Entries that left a window and that one round drops; more than one admission adds, so windows do not grow.
const TRIM_BATCH: usize = 64;
/// Rounds one admission may take to make room.
const TRIM_ROUNDS: usize = 16;

async fn usage_of(tx: &mut dyn Tx, home: Partition, quota: QuotaPolicyId) -> Result<QuotaUsage> {
    Ok(tx.get(Key::quota_usage(home, quota)).await?.unwrap_or_else(|| QuotaUsage::none(home, quota)))
}

/// Admits one execution, or counts nothing.
pub(crate) struct Admit {
    pub(crate) home: Partition,
    pub(crate) quota: QuotaPolicyId,
    pub(crate) dimension: String,
    pub(crate) execution: ExecutionId,
    /// The ownership the admission is for.
    pub(crate) epoch: LeaseEpoch,
    /// Whether the slot of a lost ownership goes over to the new one.
    pub(crate) inherits: bool,
    pub(crate) limits: AdmissionLimits,
    /// Until when the claim must have happened.
    pub(crate) until: TimestampMs,
    /// Any random number, for jitter.
    pub(crate) sample: u64,
}

impl Admit {
    /// The admission that stands. One of an ended ownership is settled here, whatever became of its settlement record.
    async fn standing(&self, tx: &mut dyn Tx, usage: &mut QuotaUsage) -> Result<Option<Admission>> {
        let key = Key::admission(self.home, self.quota, self.execution);
        let Some(found) = tx.get::<Admission>(key.clone()).await? else { return Ok(None) };
        let ended = found.epoch < self.epoch && !self.inherits;
        if !ended && found.is_live(&self.limits, tx.now()) {
            return Ok(Some(found));
        }
        if found.holds_slot {
            usage.holders = usage.holders.saturating_sub(1);
        }
        tx.delete(key);
        Ok(None)
    }

    /// Prolongs an admission for the claim that asks now.
    fn renew(&self, mut admission: Admission, tx: &mut dyn Tx) {
        if admission.epoch < self.epoch {
            admission.renewed_from = Some(admission.epoch);
            admission.epoch = self.epoch;
            admission.claims = 1;
            admission.provisional_until = Some(self.until);
            tx.put(admission);
        } else if admission.epoch == self.epoch {
            admission.claims = admission.claims.saturating_add(1);
            admission.provisional_until = admission.provisional_until.map(|until| until.max(self.until));
            tx.put(admission);
        }
    }

    fn window(&self) -> Index {
        Index::WindowOf(self.home, self.quota, self.dimension.clone())
    }

    /// Drops entries that left the window, as many as it takes to tell whether there is room.
    async fn trim(&self, tx: &mut dyn Tx, usage: &mut QuotaUsage) -> Result<()> {
        if self.limits.window_ms == 0 {
            return Ok(());
        }
        let gone = Position::end_of(self.limits.window_floor(tx.now()).0);
        for _ in 0..TRIM_ROUNDS {
            let bounds = Bounds::first(TRIM_BATCH).until(gone.clone());
            let expired = tx.range_of::<WindowEntry>(self.window(), bounds).await?;
            usage.forget(&self.dimension, expired.len() as u64);
            let all = expired.len() < TRIM_BATCH;
            for entry in expired {
                tx.delete(crate::records::Stored::key(&entry));
            }
            if all || usage.entries_of(&self.dimension) < self.limits.rate_limit {
                break;
            }
        }
        Ok(())
    }

    async fn facts(&self, tx: &mut dyn Tx, usage: &QuotaUsage) -> Result<AdmissionFacts> {
        let in_window = usage.entries_of(&self.dimension);
        let full = self.limits.rate_limit > 0 && in_window >= self.limits.rate_limit;
        let oldest = if full { tx.range_of::<WindowEntry>(self.window(), Bounds::first(1)).await? } else { Vec::new() };
        let oldest_at = oldest.first().map(|entry| entry.at);
        Ok(AdmissionFacts { holds: false, in_window, oldest_at, holders: usage.holders })
    }

    /// A moment at which this execution has no entry yet: now, or just after.
    async fn free_moment(&self, tx: &mut dyn Tx) -> Result<TimestampMs> {
        let mut at = tx.now();
        loop {
            let key = Key::window_entry(self.home, self.quota, self.dimension.clone(), at, self.execution);
            if tx.get::<WindowEntry>(key).await?.is_none() {
                return Ok(at);
            }
            at = at.plus(1);
        }
    }

    async fn record(&self, tx: &mut dyn Tx, usage: &mut QuotaUsage) -> Result<()> {
        let mut admitted_at = tx.now();
        if self.limits.window_ms > 0 {
            admitted_at = self.free_moment(tx).await?;
            usage.enter(&self.dimension);
            tx.put(WindowEntry {
                home: self.home,
                quota: self.quota,
                dimension: self.dimension.clone(),
                at: admitted_at,
                execution: self.execution,
            });
        }
        let holds_slot = self.limits.concurrency_cap > 0;
        usage.holders += u64::from(holds_slot);
        tx.put(Admission {
            home: self.home,
            quota: self.quota,
            execution: self.execution,
            dimension: self.dimension.clone(),
            admitted_at,
            epoch: self.epoch,
            renewed_from: None,
            claims: 1,
            holds_slot,
            provisional_until: Some(self.until),
        });
        Ok(())
    }
}

#[async_trait::async_trait]
impl Op for Admit {
    type Out = CheckAdmissionResult;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::quota_usage(self.home, self.quota), Key::admission(self.home, self.quota, self.execution)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<CheckAdmissionResult> {
        let before = usage_of(tx, self.home, self.quota).await?;
        let mut usage = before.clone();
        if let Some(admission) = self.standing(tx, &mut usage).await? {
            self.renew(admission, tx);
            return Ok(CheckAdmissionResult::AlreadyAdmitted);
        }
        self.trim(tx, &mut usage).await?;
        let answer = admit(&self.limits, &self.facts(tx, &usage).await?, tx.now(), self.sample);
        if answer.is_admitted() {
            self.record(tx, &mut usage).await?;
        }
        if usage != before {
            tx.put(usage);
        }
        Ok(answer)
    }
}

/// Why an admission goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// The caller undoes it, place in the window included.
    Undone,
    /// A claim for this ownership did not happen. Once no other relies on the admission it is undone, but an inherited slot goes
    /// back to the lost ownership.
    Withdrawn(LeaseEpoch),
    /// An ownership ended; its start still counts in the window.
    Settled(LeaseEpoch),
    /// The claim did not happen in time; an inherited slot goes back.
    Lapsed(LeaseEpoch),
}

/// Takes an admission back.
pub(crate) struct Free {
    pub(crate) home: Partition,
    pub(crate) quota: QuotaPolicyId,
    pub(crate) execution: ExecutionId,
    pub(crate) because: Because,
    /// Names the work of letting others in; none when nobody waits.
    pub(crate) opening: Option<Uuid>,
}

impl Free {
    /// Whether the admission that is stored is the one that goes.
    fn concerns(&self, admission: &Admission, now: TimestampMs) -> bool {
        match self.because {
            Because::Undone => true,
            Because::Withdrawn(epoch) => admission.epoch == epoch,
            Because::Settled(epoch) => admission.epoch <= epoch,
            Because::Lapsed(epoch) => {
                admission.epoch == epoch && admission.provisional_until.is_some_and(|until| until.is_due(now))
            }
        }
    }

    /// Leaves the admission to other claims that rely on it: any of them may have happened.
    fn leave_to_others(&self, mut admission: Admission, tx: &mut dyn Tx) -> bool {
        if !matches!(self.because, Because::Withdrawn(_)) || admission.claims <= 1 {
            return false;
        }
        admission.claims -= 1;
        tx.put(admission);
        true
    }

    /// Gives an inherited slot back; whether its first owner still stands is looked at when it comes due, at once.
    fn give_back(&self, mut admission: Admission, tx: &mut dyn Tx) -> bool {
        let failed = matches!(self.because, Because::Withdrawn(_) | Because::Lapsed(_));
        let Some(epoch) = admission.renewed_from.filter(|_| failed) else { return false };
        admission.epoch = epoch;
        admission.renewed_from = None;
        admission.provisional_until = Some(tx.now());
        tx.put(admission);
        true
    }

    async fn leave_window(&self, tx: &mut dyn Tx, usage: &mut QuotaUsage, admission: &Admission) -> Result<bool> {
        if !matches!(self.because, Because::Undone | Because::Withdrawn(_)) {
            return Ok(false);
        }
        let key = admission.window_key();
        if tx.get::<WindowEntry>(key.clone()).await?.is_none() {
            return Ok(false);
        }
        tx.delete(key);
        usage.forget(&admission.dimension, 1);
        Ok(true)
    }
}

#[async_trait::async_trait]
impl Op for Free {
    /// The work of letting others in, when there is room for them now.
    type Out = Option<Continuation>;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::quota_usage(self.home, self.quota), Key::admission(self.home, self.quota, self.execution)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Option<Continuation>> {
        let key = Key::admission(self.home, self.quota, self.execution);
        let found = tx.get::<Admission>(key.clone()).await?.filter(|admission| self.concerns(admission, tx.now()));
        let Some(admission) = found else { return Ok(None) };
        if self.leave_to_others(admission.clone(), tx) || self.give_back(admission.clone(), tx) {
            return Ok(None);
        }
        let mut usage = usage_of(tx, self.home, self.quota).await?;
        let left_window = self.leave_window(tx, &mut usage, &admission).await?;
        if admission.holds_slot {
            usage.holders = usage.holders.saturating_sub(if is_on(Fault::SlotFreedTwice) { 2 } else { 1 });
        }
        tx.delete(key);
        if !left_window && !admission.holds_slot {
            return Ok(None);
        }
        tx.put(usage);
        let opening = self.opening.map(|id| Continuation {
            home: self.home,
            id,
            work: ContinuationWork::OpenQuota { quota: self.quota },
            after: None,
            due_at: tx.now(),
        });
        if let Some(opening) = &opening {
            tx.put(opening.clone());
        }
        Ok(opening)
    }
}

/// The claim an admission was for has happened: it lasts as long as the ownership.
pub(crate) struct Confirm {
    pub(crate) home: Partition,
    pub(crate) quota: QuotaPolicyId,
    pub(crate) execution: ExecutionId,
    pub(crate) epoch: LeaseEpoch,
    /// When to look again, where no settlement will tell of the end.
    pub(crate) look_again_at: Option<TimestampMs>,
}

#[async_trait::async_trait]
impl Op for Confirm {
    type Out = ();

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let key = Key::admission(self.home, self.quota, self.execution);
        let found = tx.get::<Admission>(key).await?.filter(|admission| admission.epoch == self.epoch);
        if let Some(mut admission) = found.filter(|admission| admission.provisional_until.is_some()) {
            admission.provisional_until = self.look_again_at;
            admission.renewed_from = None;
            tx.put(admission);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::clock::ManualClock;
    use crate::memory::MemoryStore;
    use crate::store::Store;
    use crate::verbs::read_one;

    const FIRST: LeaseEpoch = LeaseEpoch(1);

    struct Quota {
        store: MemoryStore,
        home: Partition,
        id: QuotaPolicyId,
        execution: ExecutionId,
    }

    impl Quota {
        fn new() -> Self {
            let counts = ff_core::partition::PartitionCounts::default();
            let id = QuotaPolicyId::from_uuid(Uuid::from_u128(1));
            let execution = "{fp:0}:00000000-0000-0000-0000-000000000002".parse().unwrap();
            let store = MemoryStore::new(Arc::new(ManualClock::at(TimestampMs(1_000))));
            Self { store, home: counts.of_quota(id), id, execution }
        }

        async fn admit(&self, epoch: LeaseEpoch, inherits: bool) -> CheckAdmissionResult {
            let limits = AdmissionLimits { window_ms: 0, rate_limit: 0, concurrency_cap: 1, jitter_ms: 0 };
            let op = Admit {
                home: self.home,
                quota: self.id,
                dimension: "default".to_owned(),
                execution: self.execution,
                epoch,
                inherits,
                limits,
                until: TimestampMs(6_000),
                sample: 0,
            };
            self.store.transact(Arc::new(op)).await.unwrap()
        }

        async fn free(&self, because: Because) {
            let op = Free { home: self.home, quota: self.id, execution: self.execution, because, opening: None };
            self.store.transact(Arc::new(op)).await.unwrap();
        }

        async fn holders(&self) -> u64 {
            let usage: Option<QuotaUsage> = read_one(&self.store, Key::quota_usage(self.home, self.id)).await.unwrap();
            usage.map_or(0, |usage| usage.holders)
        }
    }

    #[tokio::test]
    async fn a_claim_that_lost_a_race_leaves_the_slot_to_the_one_that_won() {
        let quota = Quota::new();
        assert_eq!(quota.admit(FIRST, false).await, CheckAdmissionResult::Admitted);
        assert_eq!(quota.admit(FIRST, false).await, CheckAdmissionResult::AlreadyAdmitted);
        quota.free(Because::Withdrawn(FIRST)).await;
        assert_eq!(quota.holders().await, 1);
        quota.free(Because::Settled(FIRST)).await;
        assert_eq!(quota.holders().await, 0);
    }

    #[tokio::test]
    async fn the_last_claim_that_fails_takes_the_slot_along() {
        let quota = Quota::new();
        quota.admit(FIRST, false).await;
        quota.admit(FIRST, false).await;
        quota.free(Because::Withdrawn(FIRST)).await;
        quota.free(Because::Withdrawn(FIRST)).await;
        assert_eq!(quota.holders().await, 0);
    }

    #[tokio::test]
    async fn a_late_withdrawal_does_not_touch_the_slot_of_a_later_ownership() {
        let quota = Quota::new();
        quota.admit(FIRST, false).await;
        quota.admit(FIRST.next(), false).await;
        quota.free(Because::Withdrawn(FIRST)).await;
        assert_eq!(quota.holders().await, 1);
    }

    #[tokio::test]
    async fn reclaims_that_fail_give_the_slot_back_to_the_lost_ownership() {
        let quota = Quota::new();
        quota.admit(FIRST, false).await;
        quota.admit(FIRST.next(), true).await;
        quota.admit(FIRST.next(), true).await;
        quota.free(Because::Withdrawn(FIRST.next())).await;
        quota.free(Because::Withdrawn(FIRST.next())).await;
        assert_eq!(quota.holders().await, 1, "the lost ownership still counts");
        quota.free(Because::Settled(FIRST)).await;
        assert_eq!(quota.holders().await, 0);
    }
}
