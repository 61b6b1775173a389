//! The registry of live worker processes.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::backend::layer::forward;
use crate::error::{EngineError, Result};
use crate::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use crate::time::TimestampMs;

/// Entries of a worker listing when the caller names no limit.
pub const LIST_WORKERS_LIMIT_DEFAULT: u32 = 1000;

/// Announces a worker process, or replaces what it announced before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RegisterWorkerArgs {
    /// The logical worker.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// Where it works.
    pub namespace: Namespace,
    /// The lanes it serves.
    pub lanes: BTreeSet<LaneId>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: BTreeSet<String>,
    /// Kinds to serve; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeSet<String>>,
    /// How long it counts as live after a registration or heartbeat; more than 0.
    pub liveness_ttl_ms: u64,
}

/// Whether a registration is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RegisterWorkerOutcome {
    /// No live entry existed.
    Registered,
    /// A live entry existed; its lanes, capabilities, kinds and time to live were replaced.
    Refreshed,
}

/// Says that a registered process is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatWorkerArgs {
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// Where it works.
    pub namespace: Namespace,
}

/// Whether a heartbeat counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum HeartbeatWorkerOutcome {
    /// Live until the given time.
    Refreshed {
        /// Now plus the registered time to live.
        next_expiry_ms: TimestampMs,
    },
    /// Absent or lapsed; register again.
    NotRegistered,
}

/// Removes a process from the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct MarkWorkerDeadArgs {
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// Where it works.
    pub namespace: Namespace,
    /// Why; at most 256 bytes without control characters.
    pub reason: String,
}

/// Whether there was a process to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum MarkWorkerDeadOutcome {
    /// The entry is gone.
    Marked,
    /// There was none.
    NotRegistered,
}

/// Position in a worker listing: the last entry seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct WorkerCursor {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its process.
    pub worker_instance_id: WorkerInstanceId,
}

/// Which workers to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListWorkersArgs {
    /// One namespace, or all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Start strictly after this entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<WorkerCursor>,
    /// Most entries; [`LIST_WORKERS_LIMIT_DEFAULT`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A live worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct WorkerInfo {
    /// The logical worker.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// Where it works.
    pub namespace: Namespace,
    /// The lanes it serves.
    pub lanes: BTreeSet<LaneId>,
    /// What it can do.
    pub capabilities: BTreeSet<String>,
    /// Kinds it serves; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeSet<String>>,
    /// The last registration or heartbeat.
    pub last_heartbeat_ms: TimestampMs,
    /// How long it counts as live after that.
    pub liveness_ttl_ms: u64,
    /// When it was first registered without a gap.
    pub registered_at_ms: TimestampMs,
}

impl WorkerInfo {
    /// The time from which it no longer counts as live.
    #[must_use]
    pub fn expires_at(&self) -> TimestampMs {
        self.last_heartbeat_ms.plus(self.liveness_ttl_ms)
    }

    /// Its position in a listing.
    #[must_use]
    pub fn cursor(&self) -> WorkerCursor {
        WorkerCursor { namespace: self.namespace.clone(), worker_instance_id: self.worker_instance_id.clone() }
    }
}

/// Live workers in order of namespace and process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListWorkersResult {
    /// The workers.
    #[cfg_attr(test, proptest(strategy = "proptest::collection::vec(proptest::arbitrary::any::<WorkerInfo>(), 0..4)"))]
    pub entries: Vec<WorkerInfo>,
    /// Where to go on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<WorkerCursor>,
}

/// Knows which worker processes are alive, where they work and what they can do.
#[async_trait]
pub trait Workers: Send + Sync {
    /// Enters a process, or replaces its live entry; registers its lanes and frees work that waited for its
    /// capabilities, or for somebody who handles its kind.
    ///
    /// `InvalidInput` for a time to live of 0, for kinds that [`check_kinds`](crate::kinds::check_kinds) refuses, and
    /// `instance_id reassigned` while the process is live under another worker id; `InvalidCapabilities` for a malformed
    /// capability. Repeating answers `Refreshed`.
    async fn register_worker(&self, args: RegisterWorkerArgs) -> Result<RegisterWorkerOutcome> {
        let _ = args;
        Err(EngineError::Unavailable { op: "register_worker" })
    }

    /// Extends a live entry by its registered time to live; never revives a lapsed one.
    async fn heartbeat_worker(&self, args: HeartbeatWorkerArgs) -> Result<HeartbeatWorkerOutcome> {
        let _ = args;
        Err(EngineError::Unavailable { op: "heartbeat_worker" })
    }

    /// Removes an entry; leases of the process are not touched. `InvalidInput` for a reason that is too long or has
    /// control characters. Repeating answers `NotRegistered`.
    async fn mark_worker_dead(&self, args: MarkWorkerDeadArgs) -> Result<MarkWorkerDeadOutcome> {
        let _ = args;
        Err(EngineError::Unavailable { op: "mark_worker_dead" })
    }

    /// Live entries only, in order of namespace and process. A limit of 0 yields an empty page.
    async fn list_workers(&self, args: ListWorkersArgs) -> Result<ListWorkersResult> {
        let _ = args;
        Err(EngineError::Unavailable { op: "list_workers" })
    }
}

forward! { Workers,
    register_worker(args: RegisterWorkerArgs) -> RegisterWorkerOutcome => Safe;
    heartbeat_worker(args: HeartbeatWorkerArgs) -> HeartbeatWorkerOutcome => Safe;
    mark_worker_dead(args: MarkWorkerDeadArgs) -> MarkWorkerDeadOutcome => OnlyIfUnsent;
    list_workers(args: ListWorkersArgs) -> ListWorkersResult => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::inspection::forwarding::assert_forwards;
    use crate::testing::{answer_round_trips, json_round_trips};
    use proptest::prelude::*;

    json_round_trips!(RegisterWorkerArgs, HeartbeatWorkerArgs, MarkWorkerDeadArgs, WorkerCursor, ListWorkersArgs);
    answer_round_trips!(
        RegisterWorkerOutcome,
        HeartbeatWorkerOutcome,
        MarkWorkerDeadOutcome,
        WorkerInfo,
        ListWorkersResult
    );

    struct Bare;
    impl Workers for Bare {}

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1))]
        #[test]
        fn a_layer_sees_every_operation_and_the_defaults_name_themselves(
            register: RegisterWorkerArgs,
            heartbeat: HeartbeatWorkerArgs,
            dead: MarkWorkerDeadArgs,
        ) {
            assert_forwards!(
                Bare,
                register_worker(register),
                heartbeat_worker(heartbeat),
                mark_worker_dead(dead),
                list_workers(ListWorkersArgs::default()),
            );
        }
    }

    proptest! {
        #[test]
        fn positions_order_by_namespace_and_then_by_process(a: WorkerCursor, b: WorkerCursor) {
            let key = |c: &WorkerCursor| (c.namespace.clone(), c.worker_instance_id.clone());
            prop_assert_eq!(a.cmp(&b), key(&a).cmp(&key(&b)));
        }

        #[test]
        fn a_worker_expires_its_ttl_after_its_last_heartbeat(info: WorkerInfo) {
            prop_assert_eq!(info.expires_at(), info.last_heartbeat_ms.plus(info.liveness_ttl_ms));
            prop_assert_eq!(info.cursor().worker_instance_id, info.worker_instance_id);
        }
    }
}
