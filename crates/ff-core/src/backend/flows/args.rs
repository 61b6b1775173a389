//! Arguments and results of the flow operations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backend::dependencies::{DependencyKind, EdgeDependencyPolicy, EdgeGroupSnapshot};
use crate::error::{EngineError, Result, ValidationKind};
use crate::ids::{ExecutionId, FlowId, LaneId, Namespace};
use crate::policy::PolicyDocument;
use crate::state::{FlowState, PublicState};
use crate::trace::TraceContext;
use crate::words::words;
use crate::{Blob, TimestampMs};

/// Most nodes of one submitted graph.
pub const SUBMIT_NODES_MAX: usize = 1_000;

/// Most edges of one submitted graph.
pub const SUBMIT_EDGES_MAX: usize = 10_000;

/// Most member ids that an answer about a cancellation lists.
pub const CANCEL_MEMBERS_ECHO_MAX: usize = 1_000;

/// How long a caller of `cancel_flow_header` has before the engine cancels the members itself.
pub const CANCEL_GRACE_MS_DEFAULT: u64 = 30_000;

/// The longest grace: the largest integer every JSON reader keeps exact.
pub const CANCEL_GRACE_MS_MAX: u64 = (1 << 53) - 1;

/// Asks for an empty flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CreateFlowArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// What kind of flow it is; opaque, not empty.
    pub flow_kind: String,
    /// The tenant.
    pub namespace: Namespace,
}

/// Whether a flow was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CreateFlowResult {
    /// It is new.
    Created {
        /// The flow.
        flow_id: FlowId,
    },
    /// It was there and is untouched.
    AlreadySatisfied {
        /// The flow.
        flow_id: FlowId,
    },
}

/// Asks for an execution to become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct AddExecutionToFlowArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// The execution, in the flow's partition.
    pub execution_id: ExecutionId,
}

/// Whether a member was added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum AddExecutionToFlowResult {
    /// It is a member now.
    Added {
        /// The member.
        execution_id: ExecutionId,
        /// Members including it.
        new_node_count: u32,
    },
    /// It was a member of this flow.
    AlreadyMember {
        /// The member.
        execution_id: ExecutionId,
        /// Members.
        node_count: u32,
    },
}

/// One execution of a submitted graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FlowNode {
    /// Name inside this graph, unique; edges refer to it.
    pub name: String,
    /// The queue.
    pub lane_id: LaneId,
    /// Which handler runs it.
    pub execution_kind: String,
    /// Input of the handler.
    #[serde(default)]
    pub input_payload: Blob,
    /// How the input is encoded; opaque.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
    /// Higher runs first.
    #[serde(default)]
    pub priority: i32,
    /// Tags of the execution.
    #[serde(default)]
    #[cfg_attr(test, proptest(strategy = "crate::backend::flows::args::tests::some_tags()"))]
    pub tags: BTreeMap<String, String>,
    /// Policy of the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyDocument>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_until: Option<TimestampMs>,
    /// Expired after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_deadline_at: Option<TimestampMs>,
    /// How inbound edges combine; all of them when absent. Needs an inbound edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<EdgeDependencyPolicy>,
    /// The trace it belongs to; handed to its handlers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<TraceContext>,
}

/// One dependency of a submitted graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FlowEdge {
    /// Name of the upstream node.
    pub from: String,
    /// Name of the downstream node.
    pub to: String,
    /// Which ends of the upstream satisfy it.
    #[serde(default)]
    pub kind: DependencyKind,
    /// Hands the upstream's result to the downstream under this name, when not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_passing_ref: Option<String>,
}

/// Asks for a whole graph in one commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SubmitFlowArgs {
    /// The flow; minted, or derived from the idempotency key, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
    /// What kind of flow it is; opaque, not empty.
    pub flow_kind: String,
    /// The tenant of the flow and of every member.
    pub namespace: Namespace,
    /// Repeats with this key find the first submission; empty means none. Not together with a flow id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Tags of the flow.
    #[serde(default)]
    #[cfg_attr(test, proptest(strategy = "crate::backend::flows::args::tests::some_tags()"))]
    pub tags: BTreeMap<String, String>,
    /// The members, at most [`SUBMIT_NODES_MAX`].
    #[cfg_attr(test, proptest(strategy = "proptest::collection::vec(proptest::arbitrary::any::<FlowNode>(), 0..4)"))]
    pub nodes: Vec<FlowNode>,
    /// The dependencies, at most [`SUBMIT_EDGES_MAX`].
    #[serde(default)]
    #[cfg_attr(test, proptest(strategy = "proptest::collection::vec(proptest::arbitrary::any::<FlowEdge>(), 0..4)"))]
    pub edges: Vec<FlowEdge>,
}

impl SubmitFlowArgs {
    /// Whether it names itself, by an id or a key, so that a repetition is recognised.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.flow_id.is_some() || self.idempotency_key.as_ref().is_some_and(|key| !key.is_empty())
    }
}

/// What became of a submitted graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SubmitFlowResult {
    /// All of it exists now.
    Submitted {
        /// The flow.
        flow_id: FlowId,
        /// The execution of each node, by node name.
        executions: BTreeMap<String, ExecutionId>,
    },
    /// It was submitted before; nothing changed.
    Duplicate {
        /// The stored flow.
        flow_id: FlowId,
    },
}

words! {
    /// What the cancellation of a flow does to its members.
    pub enum CancelFlowPolicy {
        /// Nothing: unclaimed members stay claimable.
        FlowOnly = "flow_only",
        /// Cancels every member that is not over.
        CancelAll = "cancel_all",
        /// Cancels every member that is neither over nor active; active ones finish.
        CancelPending = "cancel_pending",
    }
}

/// How long `cancel_flow` waits for the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CancelFlowWait {
    /// Not at all.
    NoWait {},
    /// At most this long.
    WaitTimeout {
        /// Milliseconds.
        timeout_ms: u64,
    },
    /// Until done, though never more than five minutes.
    WaitIndefinite {},
}

impl Default for CancelFlowWait {
    fn default() -> Self {
        Self::NoWait {}
    }
}

impl CancelFlowWait {
    /// What "indefinite" amounts to.
    pub const CEILING_MS: u64 = 300_000;

    /// Milliseconds to wait; `None` when the caller does not wait.
    #[must_use]
    pub fn budget_ms(self) -> Option<u64> {
        match self {
            Self::NoWait {} => None,
            Self::WaitTimeout { timeout_ms } => Some(timeout_ms),
            Self::WaitIndefinite {} => Some(Self::CEILING_MS),
        }
    }
}

/// What became of a cancellation. Id lists hold at most [`CANCEL_MEMBERS_ECHO_MAX`] entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CancelFlowResult {
    /// Flow and affected members are over.
    Cancelled {
        /// What was asked for the members.
        cancellation_policy: CancelFlowPolicy,
        /// Members affected.
        member_count: u64,
        /// The first of them.
        member_execution_ids: Vec<ExecutionId>,
    },
    /// The flow is cancelled, its members follow.
    CancellationScheduled {
        /// What was asked for the members.
        cancellation_policy: CancelFlowPolicy,
        /// Members affected.
        member_count: u64,
        /// The first of them.
        member_execution_ids: Vec<ExecutionId>,
    },
    /// Some members could not be cancelled.
    PartiallyCancelled {
        /// What was asked for the members.
        cancellation_policy: CancelFlowPolicy,
        /// Members that are over.
        member_execution_ids: Vec<ExecutionId>,
        /// Members that are not.
        failed_member_execution_ids: Vec<ExecutionId>,
    },
}

const fn cancel_grace_ms_default() -> u64 {
    CANCEL_GRACE_MS_DEFAULT
}

/// Asks for the flow to be flipped and its owed members to be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CancelFlowHeaderArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// Why, for people.
    pub reason: String,
    /// A [`CancelFlowPolicy`] literal.
    pub cancellation_policy: String,
    /// How long the caller has before the engine cancels the members itself.
    #[serde(default = "cancel_grace_ms_default")]
    pub grace_ms: u64,
}

impl CancelFlowHeaderArgs {
    /// The policy, once every field is found good.
    ///
    /// # Errors
    /// In order: `InvalidGraceMs` beyond [`CANCEL_GRACE_MS_MAX`]; `InvalidInput` for an unknown policy or a bad reason.
    pub fn check(&self) -> Result<CancelFlowPolicy> {
        if self.grace_ms > CANCEL_GRACE_MS_MAX {
            return Err(EngineError::validation(ValidationKind::InvalidGraceMs, self.grace_ms));
        }
        let policy = self.cancellation_policy.parse().map_err(EngineError::invalid)?;
        crate::ids::check_free_string("reason", &self.reason)?;
        Ok(policy)
    }
}

/// Who flipped the flow. Id lists hold at most [`CANCEL_MEMBERS_ECHO_MAX`] entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CancelFlowHeader {
    /// This call.
    Cancelled {
        /// What happens to the members.
        cancellation_policy: CancelFlowPolicy,
        /// Members affected.
        member_count: u64,
        /// The first of them.
        member_execution_ids: Vec<ExecutionId>,
    },
    /// An earlier call, whose policy and reason stand.
    AlreadyTerminal {
        /// The stored policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stored_cancellation_policy: Option<CancelFlowPolicy>,
        /// The stored reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stored_cancel_reason: Option<String>,
        /// The first members of the flow.
        member_execution_ids: Vec<ExecutionId>,
    },
}

/// The derived row of a flow, for dashboards; it may lag behind the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FlowProjection {
    /// The flow.
    pub flow_id: FlowId,
    /// Members.
    pub total: u32,
    /// Members that were looked at.
    pub sampled: u32,
    /// Members per public state; states without members are absent.
    pub counts: BTreeMap<PublicState, u32>,
    /// What the counts amount to.
    pub derived_state: FlowState,
    /// When it was computed.
    pub projected_at: TimestampMs,
}

/// Everything about a flow except its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FlowSnapshot {
    /// The flow.
    pub flow_id: FlowId,
    /// What kind of flow it is.
    pub flow_kind: String,
    /// The tenant.
    pub namespace: Namespace,
    /// Its authoritative state.
    pub public_flow_state: FlowState,
    /// Rises with every member and edge.
    pub graph_revision: u64,
    /// Members.
    pub node_count: u32,
    /// Edges.
    pub edge_count: u32,
    /// When it was created.
    pub created_at: TimestampMs,
    /// When it last changed.
    pub last_mutation_at: TimestampMs,
    /// When it was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_at: Option<TimestampMs>,
    /// Why it was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// What the cancellation does to the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancellation_policy: Option<CancelFlowPolicy>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// The groups of inbound edges of its members.
    pub edge_groups: Vec<EdgeGroupSnapshot>,
    /// The latest projection, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<FlowProjection>,
}

words! {
    /// A flow's state as listings show it.
    pub enum FlowStatus {
        /// Not over.
        Active = "active",
        /// All members ended well.
        Completed = "completed",
        /// All members ended, one of them badly.
        Failed = "failed",
        /// Cancelled.
        Cancelled = "cancelled",
        /// The record does not decode.
        Unknown = "unknown",
    }
}

impl From<FlowState> for FlowStatus {
    fn from(state: FlowState) -> Self {
        match state {
            FlowState::Open | FlowState::Running | FlowState::Blocked => Self::Active,
            FlowState::Cancelled => Self::Cancelled,
            FlowState::Completed => Self::Completed,
            FlowState::Failed => Self::Failed,
        }
    }
}

/// One flow of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FlowSummary {
    /// The flow.
    pub flow_id: FlowId,
    /// When it was created.
    pub created_at: TimestampMs,
    /// How it stands.
    pub status: FlowStatus,
}

/// A page of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListFlowsPage {
    /// The flows, in id order.
    pub flows: Vec<FlowSummary>,
    /// Where the next page starts; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<FlowId>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    crate::testing::json_round_trips!(
        CreateFlowArgs,
        AddExecutionToFlowArgs,
        FlowNode,
        FlowEdge,
        SubmitFlowArgs,
        CancelFlowWait,
        CancelFlowHeaderArgs,
    );
    crate::testing::answer_round_trips!(
        CreateFlowResult,
        AddExecutionToFlowResult,
        SubmitFlowResult,
        CancelFlowResult,
        CancelFlowHeader,
        FlowProjection,
        FlowSnapshot,
        FlowSummary,
        ListFlowsPage,
    );

    pub(in crate::backend::flows) fn some_tags() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map(any::<String>(), any::<String>(), 0..3)
    }

    fn header(policy: &str, grace_ms: u64) -> CancelFlowHeaderArgs {
        CancelFlowHeaderArgs {
            flow_id: FlowId::from_uuid(uuid::Uuid::nil()),
            reason: "because".into(),
            cancellation_policy: policy.into(),
            grace_ms,
        }
    }

    fn kind(result: Result<CancelFlowPolicy>) -> ValidationKind {
        match result {
            Err(EngineError::Validation { kind, .. }) => kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bad_grace_is_reported_before_an_unknown_policy() {
        assert_eq!(header("cancel_all", CANCEL_GRACE_MS_MAX).check().unwrap(), CancelFlowPolicy::CancelAll);
        assert_eq!(kind(header("nonsense", CANCEL_GRACE_MS_MAX + 1).check()), ValidationKind::InvalidGraceMs);
        assert_eq!(kind(header("nonsense", 0).check()), ValidationKind::InvalidInput);
        assert_eq!(kind(header("", 0).check()), ValidationKind::InvalidInput);
    }

    #[test]
    fn the_grace_defaults_to_half_a_minute() {
        let args: CancelFlowHeaderArgs = serde_json::from_value(json!({
            "flow_id": uuid::Uuid::nil(), "reason": "", "cancellation_policy": "flow_only"
        }))
        .unwrap();
        assert_eq!(args.grace_ms, 30_000);
    }

    #[test]
    fn a_small_graph_needs_little_json() {
        let args: SubmitFlowArgs = serde_json::from_value(json!({
            "flow_kind": "etl", "namespace": "acme",
            "nodes": [
                {"name": "a", "lane_id": "main", "execution_kind": "load"},
                {"name": "b", "lane_id": "main", "execution_kind": "store", "join": {"type": "all_of"}}
            ],
            "edges": [{"from": "a", "to": "b"}]
        }))
        .unwrap();
        assert_eq!(args.edges[0].kind, DependencyKind::SuccessOnly);
        assert_eq!(args.nodes[1].join, Some(EdgeDependencyPolicy::AllOf {}));
        assert_eq!(args.nodes[0].priority, 0);
    }

    #[test]
    fn no_wait_has_no_budget_and_an_indefinite_wait_has_a_ceiling() {
        assert_eq!(CancelFlowWait::NoWait {}.budget_ms(), None);
        assert_eq!(CancelFlowWait::WaitTimeout { timeout_ms: 7 }.budget_ms(), Some(7));
        assert_eq!(CancelFlowWait::WaitIndefinite {}.budget_ms(), Some(300_000));
    }

    #[test]
    fn a_flow_that_is_not_over_is_listed_as_active() {
        let statuses: Vec<_> = FlowState::ALL.iter().map(|state| FlowStatus::from(*state).as_str()).collect();
        assert_eq!(statuses, ["active", "active", "active", "cancelled", "completed", "failed"]);
    }
}
