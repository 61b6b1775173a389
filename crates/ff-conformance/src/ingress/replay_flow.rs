//! Replaying members of a flow.

use ff_core::backend::attempts::FailureReason;
use ff_core::backend::dependencies::EdgeDependencyPolicy;
use ff_core::backend::flows::{AddExecutionToFlowArgs, CancelFlowPolicy, CancelFlowWait, CreateFlowArgs};
use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs, ReplayExecutionResult};
use ff_core::error::StateKind;
use ff_core::ids::{EdgeId, ExecutionId, FlowId};
use ff_core::rules::retry::FailureClass;
use ff_core::state::PublicState;
use ff_core::{Blob, Result};
use serde_json::json;

use crate::cases;
use crate::expect::state;
use crate::world::World;

cases!["ingress":
    a_skipped_member_waits_for_its_dependencies_again,
    a_skipped_member_whose_upstream_stays_failed_is_skipped_again,
    a_skipped_member_keeps_what_was_satisfied,
    a_skipped_member_of_a_quorum_can_be_revived,
    members_skipped_because_of_it_are_not_revived,
    a_member_of_a_cancelled_flow_is_not_replayed,
];

async fn flow(world: &World) -> FlowId {
    let flow_id = FlowId::from_uuid(world.uuid());
    let args = CreateFlowArgs { flow_id, flow_kind: "graph".to_owned(), namespace: world.namespace() };
    world.backend.create_flow(args).await.unwrap();
    flow_id
}

async fn member(world: &World, flow: FlowId) -> ExecutionId {
    let args = CreateExecutionArgs { execution_id: Some(world.member_id(flow)), ..world.submission() };
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

async fn a_member_of_a_cancelled_flow_is_not_replayed(world: World) {
    let flow = flow(&world).await;
    let a = member(&world, flow).await;
    end(&world, a, true).await;
    world.backend.cancel_flow(flow, CancelFlowPolicy::CancelAll, CancelFlowWait::NoWait {}).await.unwrap();
    state(replay(&world, a).await, StateKind::FlowAlreadyTerminal);
    assert_eq!(world.state(a).await, PublicState::Completed);
}
