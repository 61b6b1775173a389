//! Replaying members of a flow.

use std::time::Duration;

use ff_core::backend::attempts::FailureReason;
use ff_core::backend::dependencies::{EdgeDependencyPolicy, OnSatisfied};
use ff_core::backend::flows::{AddExecutionToFlowArgs, CancelFlowPolicy, CancelFlowWait, CreateFlowArgs, FlowEdge};
use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs, ReplayExecutionResult};
use ff_core::backend::subscriptions::{LeaseChange, ReplayType, ScannerFilter};
use ff_core::cursor::EventCursor;
use ff_core::error::StateKind;
use ff_core::ids::{EdgeId, ExecutionId, FlowId};
use ff_core::policy::ExecutionPolicy;
use ff_core::rules::retry::FailureClass;
use ff_core::state::PublicState;
use ff_core::{Blob, Result};
use futures_util::StreamExt;
use serde_json::json;

use crate::cases;
use crate::expect::state;
use crate::flows::kit;
use crate::world::World;

cases!["ingress":
    a_skipped_member_waits_for_its_dependencies_again,
    the_replay_of_a_skipped_member_stands_in_the_history_as_such,
    a_skipped_member_whose_upstream_stays_failed_is_skipped_again,
    a_skipped_member_keeps_what_was_satisfied,
    a_skipped_member_of_a_quorum_can_be_revived,
    members_skipped_because_of_it_are_not_revived,
    a_member_cancelled_while_it_waited_waits_again,
    a_member_whose_quorum_is_out_of_reach_waits_again_and_is_skipped,
    a_member_cancelled_while_it_waited_gets_the_results_of_that_time,
    a_member_cancelled_while_it_waited_is_skipped_when_its_upstream_failed,
    a_revived_member_can_wait_for_children,
    a_member_of_a_cancelled_flow_is_not_replayed,
    a_stranger_with_the_id_of_a_purged_upstream_is_not_waited_for,
];

async fn flow(world: &World) -> FlowId {
    let flow_id = FlowId::from_uuid(world.uuid());
    let args = CreateFlowArgs { flow_id, flow_kind: "graph".to_owned(), namespace: world.namespace() };
    world.backend.create_flow(args).await.unwrap();
    flow_id
}

async fn member(world: &World, flow: FlowId) -> ExecutionId {
    join(world, flow, world.submission()).await
}

async fn join(world: &World, flow: FlowId, submission: CreateExecutionArgs) -> ExecutionId {
    let args = CreateExecutionArgs { execution_id: Some(world.member_id(flow)), ..submission };
    let id = world.submit(args).await;
    let args = AddExecutionToFlowArgs { flow_id: flow, execution_id: id };
    world.backend.add_execution_to_flow(args).await.unwrap();
    id
}

/// Makes `downstream` wait for `upstream`.
async fn depend(world: &World, flow: FlowId, upstream: ExecutionId, downstream: ExecutionId) {
    let edge = EdgeId::from_uuid(world.uuid());
    let revision = world.backend.describe_flow(flow).await.unwrap().unwrap().graph_revision;
    let ends = json!({
        "flow_id": flow, "edge_id": edge,
        "upstream_execution_id": upstream, "downstream_execution_id": downstream,
    });
    let mut staged = ends.clone();
    staged["expected_graph_revision"] = revision.into();
    world.backend.stage_dependency_edge(serde_json::from_value(staged).unwrap()).await.unwrap();
    world.backend.apply_dependency_to_child(serde_json::from_value(ends).unwrap()).await.unwrap();
}

/// Claims until it has this one, then ends it.
async fn end(world: &World, id: ExecutionId, success: bool) {
    let handle = world.claim().await.expect("a member is claimable");
    assert_eq!(world.state(id).await, PublicState::Active, "the expected member was claimed");
    if success {
        world.backend.complete(&handle, Some(Blob::from("x"))).await.unwrap();
    } else {
        world.backend.fail(&handle, FailureReason::new("boom"), FailureClass::Permanent).await.unwrap();
    }
    world.run_due().await;
}

async fn replay(world: &World, id: ExecutionId) -> Result<ReplayExecutionResult> {
    let args = ReplayExecutionArgs { execution_id: id, reason: String::new(), requested_by: String::new() };
    world.backend.replay_execution(args).await
}

fn replayed(public_state: PublicState) -> ReplayExecutionResult {
    ReplayExecutionResult::Replayed { public_state }
}

async fn the_replay_of_a_skipped_member_stands_in_the_history_as_such(world: World) {
    let flow = flow(&world).await;
    let (a, b) = (member(&world, flow).await, member(&world, flow).await);
    depend(&world, flow, a, b).await;
    end(&world, a, false).await;
    assert_eq!(world.state(b).await, PublicState::Skipped);
    let filter = ScannerFilter::default();
    let mut history = world.backend.subscribe_lease_history(EventCursor::TAIL, &filter).await.unwrap();

    replay(&world, b).await.unwrap();

    let next = tokio::time::timeout(Duration::from_secs(10), history.next()).await.expect("an event");
    let event = next.unwrap().unwrap();
    assert_eq!(event.execution_id, b);
    assert_eq!(event.change, LeaseChange::ReplayInitiated { replay_type: ReplayType::SkippedFlowMember });
}

async fn a_skipped_member_waits_for_its_dependencies_again(world: World) {
    let flow = flow(&world).await;
    let (a, b) = (member(&world, flow).await, member(&world, flow).await);
    depend(&world, flow, a, b).await;
    end(&world, a, false).await;
    assert_eq!(world.state(b).await, PublicState::Skipped);

    assert_eq!(replay(&world, a).await.unwrap(), replayed(PublicState::Waiting));
    assert_eq!(replay(&world, b).await.unwrap(), replayed(PublicState::WaitingChildren));

    end(&world, a, true).await;
    assert_eq!(world.state(b).await, PublicState::Waiting);
    end(&world, b, true).await;
    assert_eq!(world.state(b).await, PublicState::Completed);
}

async fn a_skipped_member_whose_upstream_stays_failed_is_skipped_again(world: World) {
    let flow = flow(&world).await;
    let (a, b) = (member(&world, flow).await, member(&world, flow).await);
    depend(&world, flow, a, b).await;
    end(&world, a, false).await;

    assert_eq!(replay(&world, b).await.unwrap(), replayed(PublicState::WaitingChildren));
    world.run_due().await;
    assert_eq!(world.state(b).await, PublicState::Skipped);
}

async fn a_skipped_member_keeps_what_was_satisfied(world: World) {
    let flow = flow(&world).await;
    let (a, b, c) = (member(&world, flow).await, member(&world, flow).await, member(&world, flow).await);
    depend(&world, flow, a, c).await;
    depend(&world, flow, b, c).await;
    end(&world, a, true).await;
    end(&world, b, false).await;
    assert_eq!(world.state(c).await, PublicState::Skipped);

    replay(&world, b).await.unwrap();
    assert_eq!(replay(&world, c).await.unwrap(), replayed(PublicState::WaitingChildren));
    end(&world, b, true).await;
    assert_eq!(world.state(c).await, PublicState::Waiting);
}

async fn a_skipped_member_of_a_quorum_can_be_revived(world: World) {
    let flow = flow(&world).await;
    let (a, b, c) = (member(&world, flow).await, member(&world, flow).await, member(&world, flow).await);
    let policy: EdgeDependencyPolicy =
        serde_json::from_value(json!({"type": "quorum", "k": 2, "on_satisfied": "let_run"})).unwrap();
    world.backend.set_edge_group_policy(flow, c, policy).await.unwrap();
    depend(&world, flow, a, c).await;
    depend(&world, flow, b, c).await;
    end(&world, a, false).await;
    assert_eq!(world.state(c).await, PublicState::Skipped);

    replay(&world, a).await.unwrap();
    assert_eq!(replay(&world, c).await.unwrap(), replayed(PublicState::WaitingChildren));
    for _ in 0..2 {
        let handle = world.claim().await.expect("an upstream is claimable");
        world.backend.complete(&handle, None).await.unwrap();
        world.run_due().await;
    }
    assert_eq!(world.state(c).await, PublicState::Waiting);
}

async fn members_skipped_because_of_it_are_not_revived(world: World) {
    let flow = flow(&world).await;
    let (a, b, c) = (member(&world, flow).await, member(&world, flow).await, member(&world, flow).await);
    depend(&world, flow, a, b).await;
    depend(&world, flow, b, c).await;
    end(&world, a, false).await;
    assert_eq!(world.state(c).await, PublicState::Skipped);

    replay(&world, a).await.unwrap();
    replay(&world, b).await.unwrap();
    end(&world, a, true).await;
    assert_eq!(world.state(b).await, PublicState::Waiting);
    assert_eq!(world.state(c).await, PublicState::Skipped);
}

async fn a_stranger_with_the_id_of_a_purged_upstream_is_not_waited_for(world: World) {
    let flow = flow(&world).await;
    let soon_gone = ExecutionPolicy { retention_ms: Some(1), ..ExecutionPolicy::default() };
    let args = CreateExecutionArgs { policy: Some(soon_gone.into()), ..world.submission() };
    let (a, b) = (join(&world, flow, args).await, member(&world, flow).await);
    depend(&world, flow, a, b).await;
    end(&world, a, false).await;
    world.pass(10).await;
    assert_eq!(world.backend.describe_execution(a).await.unwrap(), None);
    world.submit(CreateExecutionArgs { execution_id: Some(a), ..world.submission() }).await;

    assert_eq!(replay(&world, b).await.unwrap(), replayed(PublicState::WaitingChildren));
    world.run_due().await;

    assert_eq!(world.state(b).await, PublicState::Skipped);
}

async fn a_member_of_a_cancelled_flow_is_not_replayed(world: World) {
    let flow = flow(&world).await;
    let a = member(&world, flow).await;
    end(&world, a, true).await;
    world.backend.cancel_flow(flow, CancelFlowPolicy::CancelAll, CancelFlowWait::NoWait {}).await.unwrap();
    state(replay(&world, a).await, StateKind::FlowAlreadyTerminal);
    assert_eq!(world.state(a).await, PublicState::Completed);
}

/// A graph in which `b` waits for the data of `a`, and was cancelled while it did.
async fn cancelled_while_waiting(world: &World) -> kit::Graph {
    let data = FlowEdge { data_passing_ref: Some("input".to_owned()), ..kit::edge("a", "b") };
    let graph = kit::submit(world, kit::nodes(&["a", "b"]), vec![data]).await;
    kit::cancel(world, graph.id("b")).await;
    assert_eq!(world.state(graph.id("b")).await, PublicState::Cancelled);
    graph
}

async fn a_member_whose_quorum_is_out_of_reach_waits_again_and_is_skipped(world: World) {
    let mut nodes = kit::nodes(&["a", "b"]);
    nodes.push(kit::joined("join", kit::quorum(3, OnSatisfied::LetRun)));
    let graph = kit::submit(&world, nodes, kit::edges(&[("a", "join"), ("b", "join")])).await;
    kit::cancel(&world, graph.id("join")).await;
    replay(&world, graph.id("join")).await.unwrap();
    assert_eq!(world.state(graph.id("join")).await, PublicState::WaitingChildren);
    kit::complete(&world, "a").await;
    assert_eq!(world.state(graph.id("join")).await, PublicState::Skipped);
}

async fn a_member_cancelled_while_it_waited_waits_again(world: World) {
    let graph = cancelled_while_waiting(&world).await;
    let answer = replay(&world, graph.id("b")).await.unwrap();
    assert_eq!(answer, replayed(PublicState::WaitingChildren));
    kit::complete(&world, "a").await;
    assert_eq!(world.state(graph.id("b")).await, PublicState::Waiting);
}

async fn a_member_cancelled_while_it_waited_gets_the_results_of_that_time(world: World) {
    let graph = cancelled_while_waiting(&world).await;
    kit::complete_with(&world, "a", "from a").await;
    let answer = replay(&world, graph.id("b")).await.unwrap();
    assert_eq!(answer, replayed(PublicState::Waiting));
    let context = world.backend.read_execution_context(graph.id("b")).await.unwrap();
    assert_eq!(context.input_payload, Blob::from("from a"));
}

async fn a_member_cancelled_while_it_waited_is_skipped_when_its_upstream_failed(world: World) {
    let graph = cancelled_while_waiting(&world).await;
    kit::fail(&world, "a").await;
    replay(&world, graph.id("b")).await.unwrap();
    world.run_due().await;
    assert_eq!(world.state(graph.id("b")).await, PublicState::Skipped);
}

async fn a_revived_member_can_wait_for_children(world: World) {
    let graph = cancelled_while_waiting(&world).await;
    kit::complete(&world, "a").await;
    replay(&world, graph.id("b")).await.unwrap();
    let handle = kit::claim_now(&world, "b").await;
    let child = kit::member(&world, graph.flow, "child").await;
    depend(&world, graph.flow, child, graph.id("b")).await;
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(graph.id("b")).await, PublicState::WaitingChildren);
    kit::complete(&world, "child").await;
    assert_eq!(world.state(graph.id("b")).await, PublicState::Waiting);
}
