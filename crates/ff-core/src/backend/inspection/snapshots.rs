//! One execution as readers see it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::ids::{
    AttemptId, AttemptIndex, ExecutionId, FlowId, LaneId, LeaseEpoch, LeaseId, Namespace, WaitpointId, WorkerInstanceId,
};
use crate::state::{BlockingReason, PublicState, StateVector};
use crate::time::TimestampMs;
use crate::trace::TraceContext;

/// The current attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct AttemptSummary {
    /// Its id.
    pub attempt_id: AttemptId,
    /// Its position, from 0.
    pub attempt_index: AttemptIndex,
}

/// The current lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct LeaseSummary {
    /// Its id.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub lease_epoch: LeaseEpoch,
    /// The owner.
    pub worker_instance_id: WorkerInstanceId,
    /// When it ends unless it is renewed.
    pub expires_at: TimestampMs,
    /// The attempt it is for, from 0.
    pub attempt_index: AttemptIndex,
    /// The last renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_at: Option<TimestampMs>,
}

/// An execution at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExecutionSnapshot {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its flow, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// Its lane.
    pub lane_id: LaneId,
    /// Its tenant.
    pub namespace: Namespace,
    /// The label users see.
    pub public_state: PublicState,
    /// Why nothing happens; absent when nothing blocks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocking_reason: Option<BlockingReason>,
    /// More about that, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocking_detail: Option<String>,
    /// The current attempt; absent before the first claim and while a new attempt is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_attempt: Option<AttemptSummary>,
    /// The current lease, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_lease: Option<LeaseSummary>,
    /// The primary waitpoint, while suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_waitpoint: Option<WaitpointId>,
    /// When it was created.
    pub created_at: TimestampMs,
    /// When anything about it changed last.
    pub last_mutation_at: TimestampMs,
    /// How many attempts were ever created.
    pub total_attempt_count: u32,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// What a handler needs to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExecutionContext {
    /// The input, byte-exact.
    pub input_payload: Blob,
    /// How the submitter says the input is encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
    /// Which handler it is for.
    pub execution_kind: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Results of upstreams by the name of their edge.
    #[serde(default)]
    pub inputs: BTreeMap<String, Blob>,
    /// Its tenant.
    pub namespace: Namespace,
    /// Its lane.
    pub lane_id: LaneId,
    /// Its flow, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// The current attempt, from 0.
    pub attempt_index: AttemptIndex,
    /// How often an operator opened it again.
    pub replay_count: u32,
    /// How often it was retried since.
    pub retry_count: u32,
    /// How often it was suspended.
    pub suspension_count: u32,
    /// The trace it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<TraceContext>,
}

/// The full view of an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExecutionInfo {
    /// The execution.
    pub execution_id: ExecutionId,
    /// Its tenant.
    pub namespace: Namespace,
    /// Its lane.
    pub lane_id: LaneId,
    /// Higher goes first.
    pub priority: i32,
    /// Which handler it is for.
    pub execution_kind: String,
    /// Every state dimension.
    pub state_vector: StateVector,
    /// The label derived from them.
    pub public_state: PublicState,
    /// When it was created.
    pub created_at: TimestampMs,
    /// When the first attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<TimestampMs>,
    /// When it became terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<TimestampMs>,
    /// The current attempt, 0 before the first claim.
    pub current_attempt_index: AttemptIndex,
    /// Its flow, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// More about what blocks it; empty when nothing does.
    pub blocking_detail: String,
}

/// What an execution came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExecutionOutcome {
    /// The label users see: one of the terminal ones.
    pub public_state: PublicState,
    /// The result, byte-exact; absent when it did not complete, or completed without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Blob>,
    /// Why it failed or expired, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// Why it failed or expired, for policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_category: Option<String>,
    /// Why it was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancellation_reason: Option<String>,
    /// When it became terminal.
    pub completed_at: TimestampMs,
}

#[cfg(test)]
mod tests {
    crate::testing::answer_round_trips!(
        AttemptSummary,
        LeaseSummary,
        ExecutionSnapshot,
        ExecutionContext,
        ExecutionInfo,
        ExecutionOutcome,
    );
}
