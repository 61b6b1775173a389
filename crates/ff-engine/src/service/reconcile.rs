//! Reconcilers, one partition at a time: a slow walk round the deployment that no two processes begin at the same place.

use std::num::NonZeroU16;
use std::time::Duration;

use ff_core::Result;
use ff_core::backend::Maintenance;
use ff_core::backend::maintenance::ReconcileCounts;
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::partition::{Partition, PartitionCounts, PartitionFamily, PartitionKey};

use super::{Context, TimerLoop, after};
use crate::store::Store;

pub(super) async fn run<S: Store>(context: Context<S>) -> Result<()> {
    let round = round(context.engine.counts());
    let step = step(context.options.reconcile_every, round.len());
    let mut place = place(&context, round.len());
    while !context.is_stopping() {
        let now = context.now().await?;
        context.sleep_until(after(now, step)).await;
        if context.is_stopping() {
            return Ok(());
        }
        let partition = round[place % round.len()];
        place += 1;
        let counts = reconcile(&context, partition).await?;
        if counts.errors > 0 {
            tracing::warn!(%partition, processed = counts.processed, errors = counts.errors, "reconciled with errors");
        }
        context.board.passed(TimerLoop::Reconcile, now);
    }
    Ok(())
}

/// Every partition that a reconciler looks after.
fn round(counts: &PartitionCounts) -> Vec<Partition> {
    let of = |family, count: NonZeroU16| (0..count.get()).map(move |index| Partition::new(family, index));
    of(PartitionFamily::Flow, counts.flow)
        .chain(of(PartitionFamily::Budget, counts.budget))
        .chain(of(PartitionFamily::Quota, counts.quota))
        .collect()
}

fn step(every: Duration, partitions: usize) -> Duration {
    every / u32::try_from(partitions.max(1)).unwrap_or(u32::MAX)
}

fn place<S: Store>(context: &Context<S>, partitions: usize) -> usize {
    usize::try_from(context.engine.settings.entropy.uniform(partitions as u64)).unwrap_or(0)
}

async fn reconcile<S: Store>(context: &Context<S>, partition: Partition) -> Result<ReconcileCounts> {
    let engine = &*context.engine;
    let (key, now) = (PartitionKey::from(partition), context.now().await?);
    match partition.family() {
        PartitionFamily::Budget => engine.reconcile_budget_counters(&key, now).await,
        PartitionFamily::Quota => engine.reconcile_quota_counters(&key, now).await,
        _ => engine.reconcile_execution_index(&key, &[], &ScannerFilter::default()).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let whole = step(Duration::from_secs(86_400), round.len()) * u32::try_from(round.len()).unwrap();
        assert!(whole <= Duration::from_secs(86_400) && whole > Duration::from_secs(86_390), "{whole:?}");
    }
}
