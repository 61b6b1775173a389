//! Quotas forget what is over: entries that left their window, and holders that are gone.

use async_trait::async_trait;
use ff_core::backend::maintenance::ReconcileCounts;
use ff_core::ids::QuotaPolicyId;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use super::PAGE;
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Admission, Execution, QuotaPolicy, QuotaUsage, Stored, WindowEntry};
use crate::scheduler::admission::free;
use crate::scheduler::slots::Because;
use crate::store::{Op, Store, Tx};
use crate::verbs::{list_of, read_one};

/// Holders that one transaction can count; more are counted by their own entries and exits only.
const HOLDERS_MAX: usize = 10_000;

/// How long entries stay where callers bring limits of their own, so that only they know the window.
const FOREIGN_WINDOW_MS: u64 = 24 * 60 * 60 * 1000;

/// Looks at every quota of a partition.
pub(super) async fn reconcile<S: Store>(
    engine: &Engine<S>,
    home: Partition,
    now: TimestampMs,
) -> Result<ReconcileCounts> {
    let now = now.min(engine.store.now().await?);
    let mut counts = ReconcileCounts::default();
    let mut after = None;
    loop {
        let bounds = Bounds::first(PAGE).after(after);
        let page: Vec<QuotaUsage> = list_of(&engine.store, Index::QuotasIn(home), bounds).await?;
        let Some(last) = page.last() else { return Ok(counts) };
        after = Some(Position::by(*last.id.uuid().as_bytes()));
        for usage in page {
            counts.processed += 1;
            counts.errors += u32::from(one(engine, &usage, now).await.is_err());
        }
    }
}

async fn one<S: Store>(engine: &Engine<S>, usage: &QuotaUsage, now: TimestampMs) -> Result<()> {
    let (home, id) = (usage.home, usage.id);
    let policy: Option<QuotaPolicy> = read_one(&engine.store, Key::quota_policy(home, id)).await?;
    let window_ms = policy
        .and_then(|policy| policy.bounds())
        .filter(|bounds| bounds.rate_limit > 0)
        .map_or(FOREIGN_WINDOW_MS, |bounds| bounds.window_ms);
    let floor = TimestampMs(now.0.saturating_sub_unsigned(window_ms));
    for dimension in usage.windows.keys() {
        let slice = engine.settings.slice;
        while !engine.run(TrimWindow { home, id, dimension: dimension.clone(), floor, slice }).await? {}
    }
    drop_former_holders(engine, home, id, floor, now).await?;
    engine.run(CountHolders { home, id }).await
}

/// Drops admissions whose execution is gone, or no longer owned as it was when it was admitted.
async fn drop_former_holders<S: Store>(
    engine: &Engine<S>,
    home: Partition,
    id: QuotaPolicyId,
    floor: TimestampMs,
    now: TimestampMs,
) -> Result<()> {
    let mut after = None;
    loop {
        let bounds = Bounds::first(PAGE).after(after);
        let page: Vec<Admission> = list_of(&engine.store, Index::AdmissionsOf(home, id), bounds).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(Position::by(last.execution.to_bytes()));
        for admission in page {
            let execution: Option<Execution> = read_one(&engine.store, Key::execution(admission.execution)).await?;
            if is_over(&admission, execution.as_ref(), floor, now) {
                let because = match admission.provisional_until {
                    Some(_) => Because::Lapsed(admission.epoch),
                    None => Because::Settled(admission.epoch),
                };
                free(engine, id, admission.execution, because).await?;
            }
        }
    }
}

fn is_over(admission: &Admission, execution: Option<&Execution>, floor: TimestampMs, now: TimestampMs) -> bool {
    let owned = execution.is_some_and(|execution| execution.is_active() && execution.epoch >= admission.epoch);
    let expected = admission.provisional_until.is_some_and(|until| !until.is_due(now));
    let in_window = !admission.holds_slot && admission.admitted_at > floor;
    !(owned || expected || in_window)
}

/// Drops entries that left a rate window; says whether all of them are gone.
struct TrimWindow {
    home: Partition,
    id: QuotaPolicyId,
    dimension: String,
    floor: TimestampMs,
    slice: usize,
}

#[async_trait]
impl Op for TrimWindow {
    type Out = bool;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::quota_usage(self.home, self.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(mut usage) = tx.get::<QuotaUsage>(Key::quota_usage(self.home, self.id)).await? else {
            return Ok(true);
        };
        let index = Index::WindowOf(self.home, self.id, self.dimension.clone());
        let old = Bounds::first(self.slice).until(Position::end_of(self.floor.0));
        let entries = tx.range_of::<WindowEntry>(index, old).await?;
        let dropped = entries.len();
        for entry in entries {
            tx.delete(entry.key());
        }
        if dropped > 0 {
            usage.forget(&self.dimension, dropped as u64);
            tx.put(usage);
        }
        Ok(dropped < self.slice)
    }
}

/// Sets the counter of holders to their true number.
struct CountHolders {
    home: Partition,
    id: QuotaPolicyId,
}

#[async_trait]
impl Op for CountHolders {
    type Out = ();

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::quota_usage(self.home, self.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(mut usage) = tx.get::<QuotaUsage>(Key::quota_usage(self.home, self.id)).await? else { return Ok(()) };
        let index = Index::AdmissionsOf(self.home, self.id);
        let admissions = tx.range_of::<Admission>(index, Bounds::first(HOLDERS_MAX)).await?;
        if admissions.len() == HOLDERS_MAX {
            return Ok(());
        }
        let holders = admissions.iter().filter(|admission| admission.holds_slot).count() as u64;
        if usage.holders != holders {
            usage.holders = holders;
            tx.put(usage);
        }
        Ok(())
    }
}
