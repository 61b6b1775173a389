//! Dependencies: edges between the members of a flow, and how the inbound edges of one member combine.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::layer::forward;
use crate::TimestampMs;
use crate::error::{EngineError, Result};
use crate::ids::{EdgeId, ExecutionId, FlowId};
use crate::state::{EdgeGroupState, EdgeState, TerminalOutcome};
use crate::words::words;

words! {
    /// Which ends of an upstream satisfy its edge.
    #[derive(Default)]
    pub enum DependencyKind {
        /// Success alone.
        #[default]
        SuccessOnly = "success_only",
        /// Any end: a failure reaches the downstream as data.
        Finished = "finished",
    }
}

words! {
    /// What happens to upstreams still running once their group is decided.
    pub enum OnSatisfied {
        /// They are cancelled.
        CancelRemaining = "cancel_remaining",
        /// They run on.
        LetRun = "let_run",
    }
}

/// How the inbound edges of one member combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum EdgeDependencyPolicy {
    /// Every edge must be satisfied.
    AllOf {},
    /// One suffices.
    AnyOf {
        /// What happens to the others.
        on_satisfied: OnSatisfied,
    },
    /// `k` suffice.
    Quorum {
        /// How many, from 1 to 2^31 - 1.
        k: u64,
        /// What happens to the others.
        on_satisfied: OnSatisfied,
    },
}

impl Default for EdgeDependencyPolicy {
    fn default() -> Self {
        Self::AllOf {}
    }
}

fn success_only() -> String {
    DependencyKind::SuccessOnly.as_str().to_owned()
}

/// Asks for an edge under optimistic concurrency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct StageDependencyEdgeArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// The new edge.
    pub edge_id: EdgeId,
    /// The member that must end first.
    pub upstream_execution_id: ExecutionId,
    /// The member that waits.
    pub downstream_execution_id: ExecutionId,
    /// A [`DependencyKind`] literal.
    #[serde(default = "success_only")]
    pub dependency_kind: String,
    /// Hands the upstream's result to the downstream under this name, when not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_passing_ref: Option<String>,
    /// The revision the caller has seen.
    pub expected_graph_revision: u64,
}

/// The edge is part of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum StageDependencyEdgeResult {
    /// It was added.
    Staged {
        /// The edge.
        edge_id: EdgeId,
        /// The revision with it.
        new_graph_revision: u64,
    },
}

/// Whether a group policy was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SetEdgeGroupPolicyResult {
    /// It is stored.
    Set,
    /// The same policy was there.
    AlreadySet,
}

/// Asks for a staged edge to be put in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ApplyDependencyToChildArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// The edge.
    pub edge_id: EdgeId,
    /// Its upstream end.
    pub upstream_execution_id: ExecutionId,
    /// Its downstream end.
    pub downstream_execution_id: ExecutionId,
}

/// Whether an edge was put in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ApplyDependencyToChildResult {
    /// It is in force.
    Applied {
        /// Edges the downstream still waits for.
        unsatisfied_count: u32,
    },
    /// It was in force.
    AlreadyApplied,
}

/// Asks for one edge to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ResolveDependencyArgs {
    /// The flow.
    pub flow_id: FlowId,
    /// The edge.
    pub edge_id: EdgeId,
    /// Its upstream end, which is over.
    pub upstream_execution_id: ExecutionId,
    /// Its downstream end.
    pub downstream_execution_id: ExecutionId,
    /// How the upstream ended.
    pub upstream_outcome: TerminalOutcome,
}

words! {
    /// The fate of one edge.
    pub enum ResolveDependencyOutcome {
        /// The upstream ended as wanted.
        Satisfied = "satisfied",
        /// It ended otherwise.
        Impossible = "impossible",
        /// The edge was settled before.
        AlreadyResolved = "already_resolved",
    }
}

/// What one completion set in motion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CascadeOutcome {
    /// Edges settled by this call.
    pub resolved: u32,
    /// Downstreams that were skipped and cascaded in turn.
    pub cascaded_children: u32,
    /// Whether everything that follows is done, too.
    pub synchronous: bool,
}

words! {
    /// What the dependencies say about an execution.
    pub enum FlowEligibility {
        /// There is no such execution.
        NotFound = "not_found",
        /// Suspended.
        NotRunnable = "not_runnable",
        /// An attempt owns it.
        Owned = "owned",
        /// It is over.
        Terminal = "terminal",
        /// Its dependencies can no longer be satisfied.
        Impossible = "impossible",
        /// Its dependencies are not decided.
        BlockedByDependencies = "blocked_by_dependencies",
        /// Nothing in the graph holds it.
        Eligible = "eligible",
    }
}

words! {
    /// Why siblings are cancelled.
    pub enum SiblingCancelReason {
        /// Their group is satisfied without them.
        QuorumSatisfied = "sibling_quorum_satisfied",
        /// Their group can no longer be satisfied.
        QuorumImpossible = "sibling_quorum_impossible",
    }
}

words! {
    /// What a look at a sibling-cancel group did.
    pub enum SiblingCancelReconcileAction {
        /// The pending entry had no group behind it and is gone.
        StaleDropped = "stale_dropped",
        /// All siblings were over; the group is drained.
        CompletedDrain = "completed_drain",
        /// Nothing: not pending, or siblings still run.
        NoOp = "no_op",
    }
}

/// Which edges of a member to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum EdgeDirection {
    /// Those it is the upstream of.
    Outgoing {
        /// The member.
        from_node: ExecutionId,
    },
    /// Those it is the downstream of.
    Incoming {
        /// The member.
        to_node: ExecutionId,
    },
}

impl EdgeDirection {
    /// The member whose edges are listed.
    #[must_use]
    pub const fn subject(self) -> ExecutionId {
        match self {
            Self::Outgoing { from_node } => from_node,
            Self::Incoming { to_node } => to_node,
        }
    }
}

/// One edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct EdgeSnapshot {
    /// The edge.
    pub edge_id: EdgeId,
    /// Its flow.
    pub flow_id: FlowId,
    /// The member that must end first.
    pub upstream_execution_id: ExecutionId,
    /// The member that waits.
    pub downstream_execution_id: ExecutionId,
    /// Which ends of the upstream satisfy it.
    pub dependency_kind: DependencyKind,
    /// Name under which the upstream's result is handed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_passing_ref: Option<String>,
    /// How far it has come.
    pub edge_state: EdgeState,
    /// When it was staged.
    pub created_at: TimestampMs,
}

/// The inbound edges of one member, counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct EdgeGroupSnapshot {
    /// The member that waits.
    pub downstream_execution_id: ExecutionId,
    /// Which of its groups this is: each wait for children opens a new one.
    pub generation: u32,
    /// How the edges combine.
    pub policy: EdgeDependencyPolicy,
    /// Edges in force.
    pub total_deps: u32,
    /// Edges satisfied.
    pub satisfied_count: u32,
    /// Edges whose upstream failed, was cancelled or expired.
    pub failed_count: u32,
    /// Edges whose upstream was skipped.
    pub skipped_count: u32,
    /// Edges whose upstream is not over.
    pub running_count: u32,
    /// What the counts amount to, decided once.
    pub group_state: EdgeGroupState,
}

/// Orders the members of a flow: who waits for whom, and what an end means to those who wait.
#[async_trait]
pub trait Dependencies: Send + Sync {
    /// Adds an edge to the graph; it holds nothing back until it is applied.
    ///
    /// Errors in order: `InvalidInput` for an unknown kind; `SelfReferencingEdge`; `NotFound(flow)`;
    /// `FlowAlreadyTerminal`; `StaleGraphRevision`; `ExecutionNotInFlow`; `CycleDetected`; `DependencyAlreadyExists`
    /// with the edge that is there, by which a repeat recognises its own write.
    async fn stage_dependency_edge(&self, _args: StageDependencyEdgeArgs) -> Result<StageDependencyEdgeResult> {
        Err(EngineError::Unavailable { op: "stage_dependency_edge" })
    }

    /// Fixes how the inbound edges of a member combine; possible before its first edge only.
    ///
    /// Errors in order: `InvalidInput` for a quorum outside 1 to 2^31 - 1; `NotFound(flow)`; `ExecutionNotInFlow`;
    /// `InvalidInput` with `edge_group_policy_already_fixed`. A repeat answers `AlreadySet`.
    async fn set_edge_group_policy(
        &self,
        _flow_id: FlowId,
        _downstream_execution_id: ExecutionId,
        _policy: EdgeDependencyPolicy,
    ) -> Result<SetEdgeGroupPolicyResult> {
        Err(EngineError::Unavailable { op: "set_edge_group_policy" })
    }

    /// Puts a staged edge in force: a runnable downstream waits from now on, any other once it becomes runnable. An
    /// upstream that is over settles the edge at once.
    ///
    /// Errors in order: `NotFound(execution)`; `ExecutionAlreadyInFlow` for a child of another flow;
    /// `FlowAlreadyTerminal`; `InvalidDependency` when the edge is unknown or its ends differ. A repeat answers
    /// `AlreadyApplied`.
    async fn apply_dependency_to_child(
        &self,
        _args: ApplyDependencyToChildArgs,
    ) -> Result<ApplyDependencyToChildResult> {
        Err(EngineError::Unavailable { op: "apply_dependency_to_child" })
    }

    /// Settles one edge of an upstream that is over, and the downstream when that decides its group.
    ///
    /// Errors: `InvalidDependency` for an edge that is not in force; `InvalidInput` for an outcome that is none;
    /// `Corruption` when the counts of the group contradict each other. A repeat answers `AlreadyResolved`.
    async fn resolve_dependency(&self, _args: ResolveDependencyArgs) -> Result<ResolveDependencyOutcome> {
        Err(EngineError::Unavailable { op: "resolve_dependency" })
    }

    /// Settles every outgoing edge of one execution by its stored outcome; no work when it is not over or in no flow.
    /// Repeating is safe.
    async fn cascade_completion(&self, _execution_id: ExecutionId) -> Result<CascadeOutcome> {
        Err(EngineError::Unavailable { op: "cascade_completion" })
    }

    /// What the dependencies say about an execution, without changing it.
    async fn evaluate_flow_eligibility(&self, _execution_id: ExecutionId) -> Result<FlowEligibility> {
        Err(EngineError::Unavailable { op: "evaluate_flow_eligibility" })
    }

    /// Forgets the siblings of a decided group after all were cancelled. Succeeds when there is nothing to forget.
    async fn drain_sibling_cancel_group(&self, _flow_id: FlowId, _downstream_execution_id: ExecutionId) -> Result<()> {
        Err(EngineError::Unavailable { op: "drain_sibling_cancel_group" })
    }

    /// Looks at a group whose siblings are to be cancelled: drains it when all are over, drops an entry without group.
    async fn reconcile_sibling_cancel_group(
        &self,
        _flow_id: FlowId,
        _downstream_execution_id: ExecutionId,
    ) -> Result<SiblingCancelReconcileAction> {
        Err(EngineError::Unavailable { op: "reconcile_sibling_cancel_group" })
    }

    /// The edges on one side of a member, in no order; empty when there are none.
    async fn list_edges(&self, _flow_id: FlowId, _direction: EdgeDirection) -> Result<Vec<EdgeSnapshot>> {
        Err(EngineError::Unavailable { op: "list_edges" })
    }

    /// One edge; `None` also when it belongs to another flow.
    async fn describe_edge(&self, _flow_id: FlowId, _edge_id: EdgeId) -> Result<Option<EdgeSnapshot>> {
        Err(EngineError::Unavailable { op: "describe_edge" })
    }
}

forward! { Dependencies,
    stage_dependency_edge(args: StageDependencyEdgeArgs) -> StageDependencyEdgeResult => OnlyIfUnsent;
    set_edge_group_policy(flow_id: FlowId, downstream_execution_id: ExecutionId, policy: EdgeDependencyPolicy)
        -> SetEdgeGroupPolicyResult => Safe;
    apply_dependency_to_child(args: ApplyDependencyToChildArgs) -> ApplyDependencyToChildResult => Safe;
    resolve_dependency(args: ResolveDependencyArgs) -> ResolveDependencyOutcome => Safe;
    cascade_completion(execution_id: ExecutionId) -> CascadeOutcome => Safe;
    evaluate_flow_eligibility(execution_id: ExecutionId) -> FlowEligibility => Safe;
    drain_sibling_cancel_group(flow_id: FlowId, downstream_execution_id: ExecutionId) -> () => Safe;
    reconcile_sibling_cancel_group(flow_id: FlowId, downstream_execution_id: ExecutionId)
        -> SiblingCancelReconcileAction => Safe;
    list_edges(flow_id: FlowId, direction: EdgeDirection) -> Vec<EdgeSnapshot> => Safe;
    describe_edge(flow_id: FlowId, edge_id: EdgeId) -> Option<EdgeSnapshot> => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    crate::testing::json_round_trips!(
        EdgeDependencyPolicy,
        StageDependencyEdgeArgs,
        ApplyDependencyToChildArgs,
        ResolveDependencyArgs,
        EdgeDirection,
    );
    crate::testing::answer_round_trips!(
        StageDependencyEdgeResult,
        SetEdgeGroupPolicyResult,
        ApplyDependencyToChildResult,
        CascadeOutcome,
        EdgeSnapshot,
        EdgeGroupSnapshot,
    );

    #[test]
    fn a_policy_is_tagged_by_its_type() {
        let quorum = EdgeDependencyPolicy::Quorum { k: 2, on_satisfied: OnSatisfied::LetRun };
        assert_eq!(serde_json::to_value(quorum).unwrap(), json!({"type": "quorum", "k": 2, "on_satisfied": "let_run"}));
        assert_eq!(serde_json::to_value(EdgeDependencyPolicy::default()).unwrap(), json!({"type": "all_of"}));
        assert!(serde_json::from_value::<EdgeDependencyPolicy>(json!({"type": "any_of"})).is_err());
    }

    #[test]
    fn a_quorum_too_large_for_a_store_still_parses_so_that_it_can_be_refused() {
        let json = json!({"type": "quorum", "k": 1u64 << 40, "on_satisfied": "let_run"});
        assert!(serde_json::from_value::<EdgeDependencyPolicy>(json).is_ok());
    }

    #[test]
    fn a_staged_edge_wants_success_unless_it_says_otherwise() {
        let id = "{fp:1}:00000000-0000-0000-0000-000000000000";
        let args: StageDependencyEdgeArgs = serde_json::from_value(json!({
            "flow_id": uuid::Uuid::nil(), "edge_id": uuid::Uuid::nil(),
            "upstream_execution_id": id, "downstream_execution_id": id, "expected_graph_revision": 3
        }))
        .unwrap();
        assert_eq!(args.dependency_kind, "success_only");
    }
}
