//! Graphs whose members each have a lane of their own, so that a case can run them by name.

use std::collections::BTreeMap;

use ff_core::Blob;
use ff_core::backend::attempts::{CancelExecutionArgs, FailureReason};
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::dependencies::{DependencyKind, EdgeDependencyPolicy, EdgeGroupSnapshot, OnSatisfied};
use ff_core::backend::flows::{
    AddExecutionToFlowArgs, CreateFlowArgs, FlowEdge, FlowNode, SubmitFlowArgs, SubmitFlowResult,
};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FenceTriple, FlowId, LaneId};
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;
use ff_core::state::PublicState;

use crate::World;
use crate::world::{LEASE_MS, worker};

/// A submitted graph.
pub(crate) struct Graph {
    pub(crate) flow: FlowId,
    pub(crate) members: BTreeMap<String, ExecutionId>,
}

impl Graph {
    pub(crate) fn id(&self, name: &str) -> ExecutionId {
        self.members[name]
    }
}

pub(crate) fn node(name: &str) -> FlowNode {
    FlowNode {
        name: name.to_owned(),
        lane_id: LaneId::new(name).unwrap(),
        execution_kind: "step".to_owned(),
        input_payload: Blob::from(name.as_bytes().to_vec()),
        payload_encoding: None,
        priority: 0,
        tags: BTreeMap::new(),
        policy: None,
        delay_until: None,
        execution_deadline_at: None,
        join: None,
        trace_context: None,
    }
}

pub(crate) fn joined(name: &str, join: EdgeDependencyPolicy) -> FlowNode {
    FlowNode { join: Some(join), ..node(name) }
}

pub(crate) const fn any_of(on_satisfied: OnSatisfied) -> EdgeDependencyPolicy {
    EdgeDependencyPolicy::AnyOf { on_satisfied }
}

pub(crate) const fn quorum(k: u64, on_satisfied: OnSatisfied) -> EdgeDependencyPolicy {
    EdgeDependencyPolicy::Quorum { k, on_satisfied }
}

pub(crate) fn edge(from: &str, to: &str) -> FlowEdge {
    FlowEdge { from: from.to_owned(), to: to.to_owned(), kind: DependencyKind::SuccessOnly, data_passing_ref: None }
}

pub(crate) fn edges(pairs: &[(&str, &str)]) -> Vec<FlowEdge> {
    pairs.iter().map(|(from, to)| edge(from, to)).collect()
}

pub(crate) fn nodes(names: &[&str]) -> Vec<FlowNode> {
    names.iter().map(|name| node(name)).collect()
}

pub(crate) fn graph(world: &World, nodes: Vec<FlowNode>, edges: Vec<FlowEdge>) -> SubmitFlowArgs {
    SubmitFlowArgs {
        flow_id: None,
        flow_kind: "pipeline".to_owned(),
        namespace: world.namespace(),
        idempotency_key: None,
        tags: BTreeMap::new(),
        nodes,
        edges,
    }
}

pub(crate) async fn submit(world: &World, nodes: Vec<FlowNode>, edges: Vec<FlowEdge>) -> Graph {
    match world.backend.submit_flow(graph(world, nodes, edges)).await.unwrap() {
        SubmitFlowResult::Submitted { flow_id, executions } => Graph { flow: flow_id, members: executions },
        other @ SubmitFlowResult::Duplicate { .. } => panic!("expected a new flow, got {other:?}"),
    }
}

/// An open flow without members.
pub(crate) async fn flow(world: &World) -> FlowId {
    let flow_id = FlowId::from_uuid(world.uuid());
    let args = CreateFlowArgs { flow_id, flow_kind: "pipeline".to_owned(), namespace: world.namespace() };
    world.backend.create_flow(args).await.unwrap();
    flow_id
}

/// A new execution beside a flow, on a lane of that name, though not a member.
pub(crate) async fn beside(world: &World, flow: FlowId, lane: &str) -> ExecutionId {
    let id = world.member_id(flow);
    world.submit(CreateExecutionArgs::new(id, world.namespace(), LaneId::new(lane).unwrap(), "step")).await
}

/// A new member, on a lane of that name.
pub(crate) async fn member(world: &World, flow: FlowId, lane: &str) -> ExecutionId {
    let execution_id = beside(world, flow, lane).await;
    world.backend.add_execution_to_flow(AddExecutionToFlowArgs { flow_id: flow, execution_id }).await.unwrap();
    execution_id
}

/// Claims what is claimable on the lane of that name.
pub(crate) async fn claim(world: &World, lane: &str) -> Option<Handle> {
    let (worker_id, instance) = worker("worker-a");
    let policy = ClaimPolicy::new(worker_id, instance, LEASE_MS);
    world.backend.claim(&LaneId::new(lane).unwrap(), &CapabilitySet::default(), policy).await.unwrap()
}

pub(crate) async fn claim_now(world: &World, lane: &str) -> Handle {
    claim(world, lane).await.unwrap_or_else(|| panic!("{lane} is claimable"))
}

/// Claims and completes what is on the lane of that name.
pub(crate) async fn complete(world: &World, lane: &str) {
    let handle = claim_now(world, lane).await;
    world.backend.complete(&handle, None).await.unwrap();
}

pub(crate) async fn complete_with(world: &World, lane: &str, result: &str) {
    let handle = claim_now(world, lane).await;
    world.backend.complete(&handle, Some(Blob::from(result.as_bytes().to_vec()))).await.unwrap();
}

/// Claims what is on the lane of that name and lets it fail for good.
pub(crate) async fn fail(world: &World, lane: &str) {
    let handle = claim_now(world, lane).await;
    world.backend.fail(&handle, FailureReason::new("broken"), FailureClass::Permanent).await.unwrap();
}

pub(crate) async fn cancel(world: &World, execution_id: ExecutionId) {
    let args = CancelExecutionArgs {
        execution_id,
        reason: "unwanted".to_owned(),
        source: CancelSource::OperatorOverride,
        fence: FenceTriple::NONE,
    };
    world.backend.cancel_execution(args).await.unwrap();
}

/// The states of members, in the order of their names.
pub(crate) async fn states(world: &World, graph: &Graph, names: &[&str]) -> Vec<PublicState> {
    let mut states = Vec::new();
    for name in names {
        states.push(world.state(graph.id(name)).await);
    }
    states
}

/// The groups that lead to a member, by generation.
pub(crate) async fn groups(world: &World, flow: FlowId, downstream: ExecutionId) -> Vec<EdgeGroupSnapshot> {
    let flow = world.backend.describe_flow(flow).await.unwrap().expect("the flow exists");
    flow.edge_groups.into_iter().filter(|group| group.downstream_execution_id == downstream).collect()
}

pub(crate) async fn group(world: &World, flow: FlowId, downstream: ExecutionId) -> EdgeGroupSnapshot {
    groups(world, flow, downstream).await.into_iter().next().expect("the member has a group")
}

/// The revision of the graph now.
pub(crate) async fn revision(world: &World, flow: FlowId) -> u64 {
    world.backend.describe_flow(flow).await.unwrap().expect("the flow exists").graph_revision
}
