//! Hooks that timers and reconcilers call. All are safe to repeat.

mod budgets;
mod quotas;
mod trim;

use async_trait::async_trait;
use ff_core::backend::Maintenance;
use ff_core::backend::maintenance::{ReconcileCounts, TrimRetentionArgs};
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::ids::{ExecutionId, LaneId};
use ff_core::partition::{PartitionFamily, PartitionKey};
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::records::Execution;
use crate::store::Store;
use crate::timers::delay;
use crate::verbs::list_of;

/// Records loaded at once by a pass over a partition.
const PAGE: usize = 200;

#[async_trait]
impl<S: Store> Maintenance for Engine<S> {
    async fn promote_delayed(&self, execution_id: ExecutionId, now: TimestampMs) -> Result<()> {
        self.check_partition(execution_id)?;
        let now = now.min(self.store.now().await?);
        delay::promote(self, execution_id, now).await.map(drop)
    }

    async fn trim_retention(&self, args: TrimRetentionArgs) -> Result<u32> {
        trim::trim(self, &args).await
    }

    async fn reconcile_execution_index(
        &self,
        partition: &PartitionKey,
        lanes: &[LaneId],
        filter: &ScannerFilter,
    ) -> Result<ReconcileCounts> {
        let home = self.partition_of(partition, PartitionFamily::Flow)?;
        self.store.reindex(home).await?;
        let mut counts = ReconcileCounts::default();
        let mut after = None;
        loop {
            let bounds = Bounds::first(PAGE).after(after);
            let page: Vec<Execution> = list_of(&self.store, Index::ExecutionsIn(home), bounds).await?;
            let Some(last) = page.last() else { return Ok(counts) };
            after = Some(Position::by(last.id.to_bytes()));
            for execution in page.iter().filter(|execution| lanes.is_empty() || lanes.contains(&execution.lane)) {
                counts.processed += u32::from(trim::passes(&self.store, filter, execution).await?);
            }
        }
    }

    async fn reconcile_budget_counters(&self, partition: &PartitionKey, now: TimestampMs) -> Result<ReconcileCounts> {
        let home = self.partition_of(partition, PartitionFamily::Budget)?;
        budgets::reconcile(self, home, now).await
    }

    async fn reconcile_quota_counters(&self, partition: &PartitionKey, now: TimestampMs) -> Result<ReconcileCounts> {
        let home = self.partition_of(partition, PartitionFamily::Quota)?;
        quotas::reconcile(self, home, now).await
    }
}
