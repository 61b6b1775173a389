//! Builds graphs step by step and at once, spawns children, and cancels flows.

use ff_core::backend::dependencies::{
    ApplyDependencyToChildArgs, DependencyKind, EdgeDependencyPolicy, OnSatisfied, ResolveDependencyArgs,
    StageDependencyEdgeArgs, StageDependencyEdgeResult,
};
use ff_core::backend::flows::{
    AddExecutionToFlowArgs, CancelFlowHeaderArgs, CancelFlowPolicy, CancelFlowWait, CreateFlowArgs, FlowEdge, FlowNode,
    SubmitFlowArgs, SubmitFlowResult,
};
use ff_core::ids::{EdgeId, ExecutionId, FlowId, Namespace};
use ff_core::policy::PolicyDocument;
use ff_core::state::TerminalOutcome;

use super::actions;
use super::submitter::{create, policy, submission_in};
use super::worker::{some_held, wait_children_with};
use crate::call::{Call, Presents};
use crate::memory::{EdgeNote, LANES, NAMESPACES, name, remember};
use crate::world::{COUNTS, World};

actions![
    3 create_flow, 9 submit_flow, 8 add_member, 8 stage, 3 set_join, 8 apply, 5 spawn_and_wait, 2 cancel_flow, 2 cancel_header,
    2 acknowledge, 2 resolve, 2 cascade, 1 drain, 2 tag,
];

fn join(world: &World) -> EdgeDependencyPolicy {
    let rng = world.rng();
    let on_satisfied = rng.one_of([OnSatisfied::CancelRemaining, OnSatisfied::LetRun]);
    match rng.below(3) {
        0 => EdgeDependencyPolicy::AllOf {},
        1 => EdgeDependencyPolicy::AnyOf { on_satisfied },
        _ => EdgeDependencyPolicy::Quorum { k: rng.between(1, 3), on_satisfied },
    }
}

async fn create_flow(world: &World) {
    let (flow_id, namespace) = {
        let rng = world.rng();
        let known = rng.pick(&world.memory().flows).cloned().filter(|_| rng.chance(20));
        known.unwrap_or_else(|| (FlowId::from_uuid(rng.uuid()), name(rng.one_of(NAMESPACES))))
    };
    let args = CreateFlowArgs { flow_id, flow_kind: "graph".to_owned(), namespace: namespace.clone() };
    let engine = world.engine();
    if world.call(Call::new("create_flow", flow_id.to_string()), engine.create_flow(args)).await.is_done() {
        remember(&mut world.memory().flows, (flow_id, namespace));
    }
}

fn node(world: &World, namespace: &Namespace, label: &str, join: Option<EdgeDependencyPolicy>) -> FlowNode {
    let policy = world.rng().chance(60).then(|| PolicyDocument::from(policy(world, namespace)));
    FlowNode {
        name: label.to_owned(),
        lane_id: name(world.rng().one_of(LANES)),
        execution_kind: "node".to_owned(),
        input_payload: "in".into(),
        payload_encoding: None,
        priority: 0,
        tags: std::collections::BTreeMap::new(),
        policy,
        delay_until: world.rng().chance(10).then(|| world.now().plus(3_000)),
        execution_deadline_at: None,
        join,
        trace_context: None,
    }
}

/// Some sources, a join, and something after the join.
async fn submit_flow(world: &World) {
    let namespace: Namespace = name(world.rng().one_of(NAMESPACES));
    let sources = 2 + world.rng().below(3);
    let mut nodes: Vec<FlowNode> = (0..sources).map(|at| node(world, &namespace, &format!("s{at}"), None)).collect();
    let join = join(world);
    nodes.push(node(world, &namespace, "join", Some(join)));
    nodes.push(node(world, &namespace, "after", None));
    let kind = world.rng().one_of([DependencyKind::SuccessOnly, DependencyKind::SuccessOnly, DependencyKind::Finished]);
    let edge = |from: &str, to: &str, data: bool| FlowEdge {
        from: from.to_owned(),
        to: to.to_owned(),
        kind,
        data_passing_ref: data.then(|| "result".to_owned()),
    };
    let mut edges: Vec<FlowEdge> = (0..sources).map(|at| edge(&format!("s{at}"), "join", at == 0)).collect();
    edges.push(edge("join", "after", true));
    if world.rng().chance(5) {
        edges.push(edge("after", "s0", false));
    }
    let idempotency_key = world.rng().chance(20).then(|| format!("graph-{}", world.rng().below(4)));
    let args = SubmitFlowArgs {
        flow_id: None,
        flow_kind: "graph".to_owned(),
        namespace: namespace.clone(),
        idempotency_key,
        tags: std::collections::BTreeMap::new(),
        nodes,
        edges,
    };
    let engine = world.engine();
    let call = Call::new("submit_flow", format!("{sources} sources {join:?} {kind} key={:?}", args.idempotency_key));
    if let Some(SubmitFlowResult::Submitted { flow_id, executions }) =
        world.call(call, engine.submit_flow(args)).await.done()
    {
        let mut memory = world.memory();
        remember(&mut memory.flows, (flow_id, namespace));
        for id in executions.into_values() {
            remember(&mut memory.executions, id);
        }
    }
}

async fn join_flow(world: &World, flow_id: FlowId, execution_id: ExecutionId) -> bool {
    let args = AddExecutionToFlowArgs { flow_id, execution_id };
    let engine = world.engine();
    let call = Call::new("add_execution_to_flow", format!("{execution_id} to {flow_id}")).of(execution_id);
    world.call(call, engine.add_execution_to_flow(args)).await.is_done()
}

/// A new execution in the partition of a flow, made its member.
async fn new_member(world: &World, flow: FlowId, namespace: Namespace) -> Option<ExecutionId> {
    let id = ExecutionId::for_flow(flow, &COUNTS, world.rng().uuid());
    let mut args = submission_in(world, namespace, Some(id));
    args.idempotency_key = None;
    let id = create(world, args).await?;
    join_flow(world, flow, id).await.then_some(id)
}

fn some_flow(world: &World) -> Option<(FlowId, Namespace)> {
    world.rng().pick_recent(&world.memory().flows).cloned()
}

async fn add_member(world: &World) {
    let Some((flow, namespace)) = some_flow(world) else { return };
    let existing = world.rng().pick_recent(&world.memory().executions).copied();
    match existing.filter(|_| world.rng().chance(20)) {
        Some(id) => {
            join_flow(world, flow, id).await;
        }
        None => {
            new_member(world, flow, namespace).await;
        }
    }
}

fn members(world: &World, flow: FlowId) -> Vec<ExecutionId> {
    let seen = world.seen();
    let all = world.memory().executions.clone();
    all.into_iter().filter(|id| seen.mirror().execution(*id).is_some_and(|e| e.flow_id == Some(flow))).collect()
}

/// Stages an edge; sometimes with a revision that is no longer the current one.
async fn stage_edge(
    world: &World,
    flow: FlowId,
    ends: (ExecutionId, ExecutionId),
    kind: DependencyKind,
) -> Option<EdgeNote> {
    let (upstream, downstream) = ends;
    let revision = world.seen().mirror().flow(flow).map_or(0, |flow| flow.graph_revision);
    let stale = world.rng().chance(12);
    let expected_graph_revision = if stale { revision.saturating_sub(1) } else { revision };
    let edge_id = EdgeId::from_uuid(world.rng().uuid());
    let args = StageDependencyEdgeArgs {
        flow_id: flow,
        edge_id,
        upstream_execution_id: upstream,
        downstream_execution_id: downstream,
        dependency_kind: kind.as_str().to_owned(),
        data_passing_ref: world.rng().chance(30).then(|| "result".to_owned()),
        expected_graph_revision,
    };
    let engine = world.engine();
    let detail =
        format!("{edge_id} in {flow} from {upstream} to {downstream} {kind} at revision {expected_graph_revision}");
    let call = Call::new("stage_dependency_edge", detail);
    let call = call.with(Presents::Graph { flow, revision: expected_graph_revision });
    let StageDependencyEdgeResult::Staged { .. } = world.call(call, engine.stage_dependency_edge(args)).await.done()?;
    let note = EdgeNote { flow, id: edge_id, upstream, downstream };
    remember(&mut world.memory().edges, note);
    Some(note)
}

async fn apply_edge(world: &World, note: EdgeNote) {
    let args = ApplyDependencyToChildArgs {
        flow_id: note.flow,
        edge_id: note.id,
        upstream_execution_id: note.upstream,
        downstream_execution_id: note.downstream,
    };
    let engine = world.engine();
    let call =
        Call::new("apply_dependency_to_child", format!("{} to {}", note.id, note.downstream)).of(note.downstream);
    world.call(call, engine.apply_dependency_to_child(args)).await;
}

async fn stage(world: &World) {
    let Some((flow, _)) = some_flow(world) else { return };
    let members = members(world, flow);
    let ends = {
        let rng = world.rng();
        rng.pick(&members).copied().zip(rng.pick(&members).copied())
    };
    let Some(ends) = ends else { return };
    let kind = world.rng().one_of([DependencyKind::SuccessOnly, DependencyKind::SuccessOnly, DependencyKind::Finished]);
    if let Some(note) = stage_edge(world, flow, ends, kind).await
        && world.rng().chance(70)
    {
        apply_edge(world, note).await;
    }
}

async fn apply(world: &World) {
    let note = world.rng().pick_recent(&world.memory().edges).copied();
    if let Some(note) = note {
        apply_edge(world, note).await;
    }
}

async fn set_join(world: &World) {
    let Some((flow, _)) = some_flow(world) else { return };
    let members = members(world, flow);
    let Some(downstream) = world.rng().pick(&members).copied() else { return };
    let join = join(world);
    let engine = world.engine();
    let call = Call::new("set_edge_group_policy", format!("{downstream} {join:?}")).of(downstream);
    world.call(call, engine.set_edge_group_policy(flow, downstream, join)).await;
}

/// A running member spawns children, waits for them, and goes on whatever became of them.
async fn spawn_and_wait(world: &World) {
    let Some(held) = some_held(world) else { return };
    let parent = world.seen().mirror().execution(held.execution).and_then(|e| Some((e.flow_id?, e.namespace.clone())));
    let Some((flow, namespace)) = parent else { return };
    for _ in 0..1 + world.rng().below(2) {
        let Some(child) = new_member(world, flow, namespace.clone()).await else { return };
        if let Some(note) = stage_edge(world, flow, (child, held.execution), DependencyKind::Finished).await {
            apply_edge(world, note).await;
        }
    }
    wait_children_with(world, &held).await;
}

async fn cancel_flow(world: &World) {
    let Some((flow, _)) = some_flow(world) else { return };
    let policy =
        world.rng().one_of([CancelFlowPolicy::FlowOnly, CancelFlowPolicy::CancelPending, CancelFlowPolicy::CancelAll]);
    let engine = world.engine();
    let call = Call::new("cancel_flow", format!("{flow} {policy}"));
    world.call(call, engine.cancel_flow(flow, policy, CancelFlowWait::NoWait {})).await;
}

async fn cancel_header(world: &World) {
    let Some((flow_id, _)) = some_flow(world) else { return };
    let policy =
        world.rng().one_of([CancelFlowPolicy::FlowOnly, CancelFlowPolicy::CancelPending, CancelFlowPolicy::CancelAll]);
    let args = CancelFlowHeaderArgs {
        flow_id,
        reason: "over".to_owned(),
        cancellation_policy: policy.as_str().to_owned(),
        grace_ms: 1_000,
    };
    let engine = world.engine();
    world.call(Call::new("cancel_flow_header", format!("{flow_id} {policy}")), engine.cancel_flow_header(args)).await;
}

/// Acknowledges a member that has ended.
async fn acknowledge(world: &World) {
    let Some((flow, _)) = some_flow(world) else { return };
    let ended: Vec<_> = {
        let members = members(world, flow);
        let seen = world.seen();
        members.into_iter().filter(|id| seen.mirror().execution(*id).is_some_and(|e| e.is_terminal())).collect()
    };
    let Some(member) = world.rng().pick(&ended).copied() else { return };
    let engine = world.engine();
    let call = Call::new("ack_cancel_member", format!("{member} of {flow}"));
    world.call(call, engine.ack_cancel_member(flow, member)).await;
}

/// Settles an edge by hand; the engine goes by what is stored.
async fn resolve(world: &World) {
    let note = world.rng().pick(&world.memory().edges).copied();
    let Some(note) = note else { return };
    let outcome = world.seen().mirror().execution(note.upstream).map(|e| e.state().terminal_outcome);
    let Some(upstream_outcome) = outcome.filter(|outcome| *outcome != TerminalOutcome::None) else { return };
    let args = ResolveDependencyArgs {
        flow_id: note.flow,
        edge_id: note.id,
        upstream_execution_id: note.upstream,
        downstream_execution_id: note.downstream,
        upstream_outcome,
    };
    let engine = world.engine();
    let call = Call::new("resolve_dependency", format!("{} {upstream_outcome}", note.id)).of(note.downstream);
    world.call(call, engine.resolve_dependency(args)).await;
}

async fn cascade(world: &World) {
    let id = world.rng().pick(&world.memory().executions).copied();
    let Some(id) = id else { return };
    let engine = world.engine();
    world.call(Call::new("cascade_completion", id.to_string()).of(id), engine.cascade_completion(id)).await;
}

/// Reconciles what a decided group owes.
async fn drain(world: &World) {
    let note = world.rng().pick(&world.memory().edges).copied();
    let Some(note) = note else { return };
    let engine = world.engine();
    let call = Call::new("reconcile_sibling_cancel_group", note.downstream.to_string());
    world.call(call, engine.reconcile_sibling_cancel_group(note.flow, note.downstream)).await;
}

async fn tag(world: &World) {
    let Some((flow, _)) = some_flow(world) else { return };
    let engine = world.engine();
    world.call(Call::new("set_flow_tag", flow.to_string()), engine.set_flow_tag(flow, "app.owner", "me")).await;
}
