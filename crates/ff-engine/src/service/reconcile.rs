//! Reconcilers, one partition at a time: a slow walk round the deployment, whose place follows from the store's time. Whoever runs does the
//! partition whose time it is, so the walk comes round however often processes are started anew.

use std::num::NonZeroU16;
use std::time::Duration;

use ff_core::backend::Maintenance;
use ff_core::backend::maintenance::ReconcileCounts;
use ff_core::partition::{Partition, PartitionCounts, PartitionFamily, PartitionKey};
use ff_core::{Result, TimestampMs};

use super::{Context, SPAN_MIN, TimerLoop};
use crate::store::Store;
use crate::timers::guard::guarded;

pub(super) async fn run<S: Store>(context: Context<S>) -> Result<()> {
    let round = round(context.engine.counts());
    let walk = Walk::new(context.options.reconcile_every, round.len());
    let mut done = None;
    while !context.is_stopping() {
        let current = walk.place_at(context.now().await?);
        let Some(place) = walk.next(done, current) else {
            context.sleep_until(walk.begin_of(current.saturating_add(1))).await;
            continue;
        };
        if place == current {
            // Processes do the same partition, but not at the same moment.
            let wait_ms = context.engine.settings.entropy.uniform(walk.step_ms / 2);
            context.sleep_until(walk.begin_of(place).plus(wait_ms)).await;
        }
        let now = context.now().await?;
        let index = walk.index_of(place);
        // It can be cut short anywhere: whoever comes next begins anew.
        let reconciled = context.or_stop(guarded(reconcile(&context, round[index], index == 0))).await;
        match reconciled {
            None => return Ok(()),
            Some(answer) => tell(round[index], answer),
        }
        done = Some(place);
        context.board.passed(TimerLoop::Reconcile, now);
        // What is late is made up for, at four times the pace.
        context.sleep_until(now.plus(walk.step_ms / 4)).await;
    }
    Ok(())
}

/// A partition that fails has had its turn, like any other.
fn tell(partition: Partition, answer: Result<ReconcileCounts, String>) {
    match answer {
        Ok(ReconcileCounts { processed, errors, .. }) if errors > 0 => {
            tracing::warn!(%partition, processed, errors, "reconciled with errors");
        }
        Ok(_) => {}
        Err(why) => tracing::warn!(%partition, why, "partition could not be reconciled"),
    }
}

/// Every partition that a reconciler looks after.
fn round(counts: &PartitionCounts) -> Vec<Partition> {
    let of = |family, count: NonZeroU16| (0..count.get()).map(move |index| Partition::new(family, index));
    of(PartitionFamily::Flow, counts.flow)
        .chain(of(PartitionFamily::Budget, counts.budget))
        .chain(of(PartitionFamily::Quota, counts.quota))
        .collect()
}

/// Where the walk is at which time. Places are numbered since the beginning of time, one per step; a round is as many as there are partitions.
#[derive(Clone, Copy)]
struct Walk {
    step_ms: u64,
    partitions: i64,
}

impl Walk {
    fn new(every: Duration, partitions: usize) -> Self {
        let partitions = partitions.max(1);
        let step = (every / u32::try_from(partitions).unwrap_or(u32::MAX)).max(SPAN_MIN);
        let step_ms = u64::try_from(step.as_millis()).unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs());
        Self { step_ms, partitions: i64::try_from(partitions).unwrap_or(i64::MAX) }
    }

    fn step(self) -> i64 {
        i64::try_from(self.step_ms).unwrap_or(i64::MAX)
    }

    fn place_at(self, now: TimestampMs) -> i64 {
        now.0.div_euclid(self.step())
    }

    fn begin_of(self, place: i64) -> TimestampMs {
        TimestampMs(place.saturating_mul(self.step()))
    }

    fn index_of(self, place: i64) -> usize {
        usize::try_from(place.rem_euclid(self.partitions)).unwrap_or(0)
    }

    /// Which place is to be done after one that is done; none while that is the current one. What is late by more than a round, or early
    /// because the clock was set back, is left out.
    fn next(self, done: Option<i64>, current: i64) -> Option<i64> {
        match done {
            Some(done) if done == current => None,
            Some(done) if done < current => Some((done + 1).max(current.saturating_sub(self.partitions - 1))),
            _ => Some(current),
        }
    }
}

async fn reconcile<S: Store>(context: &Context<S>, partition: Partition, is_first: bool) -> Result<ReconcileCounts> {
    let engine = &*context.engine;
    let (key, now) = (PartitionKey::from(partition), context.now().await?);
    match partition.family() {
        PartitionFamily::Budget => engine.reconcile_budget_counters(&key, now).await,
        PartitionFamily::Quota => engine.reconcile_quota_counters(&key, now).await,
        _ => {
            let (processed, _) = engine.store.reindex_in_round(partition, is_first).await?;
            Ok(ReconcileCounts { processed, ..ReconcileCounts::default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_round_has_every_partition_once_and_takes_the_time_it_is_given() {
        let counts = PartitionCounts::default();
        let round = round(&counts);
        let distinct: std::collections::BTreeSet<_> = round.iter().collect();
        assert_eq!(
            round.len(),
            [counts.flow, counts.budget, counts.quota].map(|count| usize::from(count.get())).iter().sum::<usize>()
        );
        assert_eq!(distinct.len(), round.len());
        let whole = Duration::from_millis(Walk::new(DAY, round.len()).step_ms) * u32::try_from(round.len()).unwrap();
        assert!(whole <= DAY && whole > Duration::from_secs(86_390), "{whole:?}");
    }

    #[test]
    fn the_place_follows_from_the_time() {
        let walk = Walk::new(Duration::from_secs(10), 10);
        assert_eq!([0, 999, 1_000, 12_345].map(|ms| walk.place_at(TimestampMs(ms))), [0, 0, 1, 12]);
        assert_eq!([0, 9, 12, -1].map(|place| walk.index_of(place)), [0, 9, 2, 9]);
        assert_eq!(walk.begin_of(12), TimestampMs(12_000));
    }

    #[test]
    fn what_is_late_follows_in_order_for_up_to_a_round() {
        let walk = Walk::new(Duration::from_secs(10), 10);
        assert_eq!(walk.next(None, 7), Some(7));
        assert_eq!(walk.next(Some(7), 7), None);
        assert_eq!(walk.next(Some(7), 9), Some(8));
        assert_eq!(walk.next(Some(7), 107), Some(98));
        assert_eq!(walk.next(Some(107), 7), Some(7), "the clock was set back");
    }
}
