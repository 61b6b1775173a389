//! Flows: membership, cancellation, summary, and whole graphs in one call.

mod args;
mod children;

use async_trait::async_trait;

pub use args::{
    AddExecutionToFlowArgs, AddExecutionToFlowResult, CANCEL_GRACE_MS_DEFAULT, CANCEL_GRACE_MS_MAX,
    CANCEL_MEMBERS_ECHO_MAX, CancelFlowHeader, CancelFlowHeaderArgs, CancelFlowPolicy, CancelFlowResult,
    CancelFlowWait, CreateFlowArgs, CreateFlowResult, FlowEdge, FlowNode, FlowProjection, FlowSnapshot, FlowStatus,
    FlowSummary, ListFlowsPage, SUBMIT_EDGES_MAX, SUBMIT_NODES_MAX, SubmitFlowArgs, SubmitFlowResult,
};
pub use children::{SPAWN_BYTES_MAX, SPAWN_CHILDREN_MAX, SpawnChild};

use super::layer::forward;
use crate::TimestampMs;
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{ExecutionId, FlowId};
use crate::partition::PartitionKey;

/// Groups executions into graphs that live in one partition and are cancelled and shown as one.
#[async_trait]
pub trait Flows: Send + Sync {
    /// Creates an empty, open flow. A flow that exists is left untouched and answered with `AlreadySatisfied`, also
    /// when kind or namespace differ.
    ///
    /// Errors: `InvalidInput` for an empty kind.
    async fn create_flow(&self, _args: CreateFlowArgs) -> Result<CreateFlowResult> {
        Err(EngineError::Unavailable { op: "create_flow" })
    }

    /// Creates a flow with its members, edges and joins in one commit: all of it, or nothing.
    ///
    /// Errors, before any write: `InvalidInput` for too many nodes or edges, a name that is bad, used twice or unknown,
    /// or a join on a node without inbound edges; `SelfReferencingEdge`; `CycleDetected`; whatever creating a member
    /// refuses. A repeat with the same idempotency key or flow id answers `Duplicate` with the stored flow.
    async fn submit_flow(&self, _args: SubmitFlowArgs) -> Result<SubmitFlowResult> {
        Err(EngineError::Unavailable { op: "submit_flow" })
    }

    /// Creates children of a running execution in one commit: members of its flow, which it gets if it has none, in its namespace, each
    /// with an edge of kind `finished` into it that hands over the child's result under the child's name. A following `wait_children`
    /// waits for them; nothing else does: a parent that sleeps, is suspended, tried again or replayed goes on beside them. The parent's own
    /// input stays as it is. Answers the ids in order.
    ///
    /// A child's id follows from the parent, how often that was replayed, and the name ([`ExecutionId::of_child`]): a repeated call,
    /// also by a later attempt, answers the same ids, and what exists already stays as it is.
    ///
    /// Errors in order: `InvalidInput` for more than [`SPAWN_CHILDREN_MAX`] or a name that is bad or used twice; `PayloadTooLarge`
    /// for more than [`SPAWN_BYTES_MAX`]; those of the handle; `NotFound(execution)`; those of the fence, as for a completion; whatever
    /// creating a child refuses; `FlowAlreadyTerminal` for a flow that was cancelled; `Conflict(IdTaken)` when something that was not
    /// spawned so has the id of a child, of its edge, or of the flow that the parent would get; `Contention(RetryExhausted)` when the
    /// parent's flow kept changing.
    async fn spawn_children(&self, _handle: &Handle, _children: Vec<SpawnChild>) -> Result<Vec<ExecutionId>> {
        Err(EngineError::Unavailable { op: "spawn_children" })
    }

    /// Makes an existing execution a member, together with its pointer back to the flow.
    ///
    /// Errors in order: `InvalidInput` when the partitions differ; `NotFound(flow)`; `FlowAlreadyTerminal`;
    /// `NotFound(execution)`; `ExecutionAlreadyInFlow` for a member of another flow. A repeat answers `AlreadyMember`.
    async fn add_execution_to_flow(&self, _args: AddExecutionToFlowArgs) -> Result<AddExecutionToFlowResult> {
        Err(EngineError::Unavailable { op: "add_execution_to_flow" })
    }

    /// Cancels the flow, and its members as the policy says; members that are over never change.
    ///
    /// Without waiting it answers `CancellationScheduled` while members remain; otherwise it answers once every
    /// affected member is terminal, with `PartiallyCancelled` when some could not be cancelled. Errors in order:
    /// `NotFound(flow)`; `FlowAlreadyTerminal`, also for a repeat; `Timeout` when the wait ran out.
    async fn cancel_flow(
        &self,
        flow_id: FlowId,
        policy: CancelFlowPolicy,
        wait: CancelFlowWait,
    ) -> Result<CancelFlowResult>;

    /// Flips the flow to cancelled and registers the members owed a cancellation, in bounded time. A repeat answers
    /// `AlreadyTerminal` with the policy and reason that were stored first.
    ///
    /// Errors in order: `InvalidGraceMs`; `InvalidInput` for an unknown policy; `NotFound(flow)`.
    async fn cancel_flow_header(&self, _args: CancelFlowHeaderArgs) -> Result<CancelFlowHeader> {
        Err(EngineError::Unavailable { op: "cancel_flow_header" })
    }

    /// Takes one member off the list of those owed a cancellation. Succeeds for an unknown flow or member, and again.
    async fn ack_cancel_member(&self, _flow_id: FlowId, _execution_id: ExecutionId) -> Result<()> {
        Err(EngineError::Unavailable { op: "ack_cancel_member" })
    }

    /// The flow with its tags, edge groups and latest summary; `None` when there is none.
    async fn describe_flow(&self, flow_id: FlowId) -> Result<Option<FlowSnapshot>>;

    /// Flows of one partition in id order, strictly after the cursor. A limit of 0 gives an empty page.
    ///
    /// Errors: `InvalidInput` for a key that names no flow partition.
    async fn list_flows(
        &self,
        _partition: &PartitionKey,
        _cursor: Option<FlowId>,
        _limit: u32,
    ) -> Result<ListFlowsPage> {
        Err(EngineError::Unavailable { op: "list_flows" })
    }

    /// Sets one tag; repeating changes nothing. Errors in order: `InvalidInput` for a bad key or value;
    /// `NotFound(flow)`.
    async fn set_flow_tag(&self, _flow_id: FlowId, _key: &str, _value: &str) -> Result<()> {
        Err(EngineError::Unavailable { op: "set_flow_tag" })
    }

    /// One tag; `None` when the flow or the tag is missing. Errors: `InvalidInput` for a bad key.
    async fn get_flow_tag(&self, _flow_id: FlowId, _key: &str) -> Result<Option<String>> {
        Err(EngineError::Unavailable { op: "get_flow_tag" })
    }

    /// Writes the summary of a flow from its members; `false` when it has none or does not exist.
    async fn project_flow_summary(&self, _flow_id: FlowId, _now: TimestampMs) -> Result<bool> {
        Err(EngineError::Unavailable { op: "project_flow_summary" })
    }
}

forward! { Flows,
    create_flow(args: CreateFlowArgs) -> CreateFlowResult => Safe;
    submit_flow(args: SubmitFlowArgs) -> SubmitFlowResult => SafeIfNamed(args.is_named());
    spawn_children(handle: &Handle, children: Vec<SpawnChild>) -> Vec<ExecutionId> => Safe;
    add_execution_to_flow(args: AddExecutionToFlowArgs) -> AddExecutionToFlowResult => Safe;
    cancel_flow(flow_id: FlowId, policy: CancelFlowPolicy, wait: CancelFlowWait) -> CancelFlowResult => OnlyIfUnsent;
    cancel_flow_header(args: CancelFlowHeaderArgs) -> CancelFlowHeader => Safe;
    ack_cancel_member(flow_id: FlowId, execution_id: ExecutionId) -> () => Safe;
    describe_flow(flow_id: FlowId) -> Option<FlowSnapshot> => Safe;
    list_flows(partition: &PartitionKey, cursor: Option<FlowId>, limit: u32) -> ListFlowsPage => Safe;
    set_flow_tag(flow_id: FlowId, key: &str, value: &str) -> () => Safe;
    get_flow_tag(flow_id: FlowId, key: &str) -> Option<String> => Safe;
    project_flow_summary(flow_id: FlowId, now: TimestampMs) -> bool => Safe;
}
