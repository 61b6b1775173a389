//! Hooks that timers and reconcilers call. All are safe to repeat.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::backend::layer::forward;
use crate::backend::subscriptions::ScannerFilter;
use crate::error::{EngineError, Result};
use crate::ids::{ExecutionId, LaneId, Namespace};
use crate::partition::PartitionKey;
use crate::time::TimestampMs;

/// How long terminal executions stay when nothing else is said.
pub const RETENTION_MS_DEFAULT: u64 = 86_400_000;

/// Terminal executions purged by one call when nothing else is said.
pub const TRIM_BATCH_SIZE_DEFAULT: u32 = 20;

/// Which terminal executions to purge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct TrimRetentionArgs {
    /// The partition to look at.
    pub partition: PartitionKey,
    /// The namespace of the lane; absent means that lane of every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// The lane to look at.
    pub lane_id: LaneId,
    /// Purge what completed at least this long ago; an execution's own retention wins.
    #[serde(default = "retention_ms_default")]
    pub retention_ms: u64,
    /// The time to measure from; the store's clock wins when it is earlier.
    pub now: TimestampMs,
    /// Most executions to purge.
    #[serde(default = "trim_batch_size_default")]
    pub batch_size: u32,
    /// Leave everything else alone.
    #[serde(default)]
    pub filter: ScannerFilter,
}

const fn retention_ms_default() -> u64 {
    RETENTION_MS_DEFAULT
}

const fn trim_batch_size_default() -> u32 {
    TRIM_BATCH_SIZE_DEFAULT
}

/// What a reconciling pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ReconcileCounts {
    /// Records looked at.
    pub processed: u32,
    /// Records that could not be checked or repaired.
    pub errors: u32,
}

/// Keeps the store tidy: due delays, retention, and counters that must agree with their records.
#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Makes a delayed execution claimable once its delay has passed, or sends it back to its dependencies while those
    /// are undecided. Its attempt state stays. A missing, moved or not yet due execution is left alone.
    async fn promote_delayed(&self, execution_id: ExecutionId, now: TimestampMs) -> Result<()> {
        let _ = (execution_id, now);
        Err(EngineError::Unavailable { op: "promote_delayed" })
    }

    /// Purges terminal executions with everything that belongs to them; answers how many. An upstream stays while an
    /// edge that depends on it is unresolved, and a spawned child while its parent is not over. Less than a full batch means nothing more is due.
    async fn trim_retention(&self, args: TrimRetentionArgs) -> Result<u32> {
        let _ = args;
        Err(EngineError::Unavailable { op: "trim_retention" })
    }

    /// Compares every execution of a partition with the index its state implies, and repairs. No lanes means all.
    async fn reconcile_execution_index(
        &self,
        partition: &PartitionKey,
        lanes: &[LaneId],
        filter: &ScannerFilter,
    ) -> Result<ReconcileCounts> {
        let _ = (partition, lanes, filter);
        Err(EngineError::Unavailable { op: "reconcile_execution_index" })
    }

    /// Recomputes the breach markers of budgets that never reset, and checks usage against the ledgers.
    async fn reconcile_budget_counters(&self, partition: &PartitionKey, now: TimestampMs) -> Result<ReconcileCounts> {
        let _ = (partition, now);
        Err(EngineError::Unavailable { op: "reconcile_budget_counters" })
    }

    /// Trims quota windows, drops admissions whose holder is gone, and sets concurrency to the true number of holders.
    async fn reconcile_quota_counters(&self, partition: &PartitionKey, now: TimestampMs) -> Result<ReconcileCounts> {
        let _ = (partition, now);
        Err(EngineError::Unavailable { op: "reconcile_quota_counters" })
    }
}

forward! { Maintenance,
    promote_delayed(execution_id: ExecutionId, now: TimestampMs) -> () => Safe;
    trim_retention(args: TrimRetentionArgs) -> u32 => Safe;
    reconcile_execution_index(partition: &PartitionKey, lanes: &[LaneId], filter: &ScannerFilter) -> ReconcileCounts
        => Safe;
    reconcile_budget_counters(partition: &PartitionKey, now: TimestampMs) -> ReconcileCounts => Safe;
    reconcile_quota_counters(partition: &PartitionKey, now: TimestampMs) -> ReconcileCounts => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::inspection::forwarding::{any_execution, assert_forwards};
    use crate::testing::{answer_round_trips, json_round_trips};

    json_round_trips!(TrimRetentionArgs);
    answer_round_trips!(ReconcileCounts);

    struct Bare;
    impl Maintenance for Bare {}

    fn sparse_trim() -> TrimRetentionArgs {
        serde_json::from_str(r#"{"partition":"{fp:1}","lane_id":"main","now":5}"#).expect("parses")
    }

    #[test]
    fn a_layer_sees_every_operation_and_the_defaults_name_themselves() {
        let (partition, filter, now) = (PartitionKey("{fp:1}".into()), ScannerFilter::default(), TimestampMs(0));
        assert_forwards!(
            Bare,
            promote_delayed(any_execution(), now),
            trim_retention(sparse_trim()),
            reconcile_execution_index(&partition, &[], &filter),
            reconcile_budget_counters(&partition, now),
            reconcile_quota_counters(&partition, now),
        );
    }

    #[test]
    fn a_trim_without_numbers_keeps_a_day_and_purges_small_batches() {
        let args = sparse_trim();
        assert_eq!(args.retention_ms, 86_400_000);
        assert_eq!(args.batch_size, 20);
        assert_eq!(args.filter, ScannerFilter::default());
    }
}
