//! Claims and cancelled flows.

use ff_core::backend::flows::{
    AddExecutionToFlowArgs, CancelFlowHeaderArgs, CancelFlowPolicy, CancelFlowWait, CreateFlowArgs,
};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::state::PublicState;
use serde_json::json;

use super::{claim_args, grant_args};
use crate::cases;
use crate::expect::contention;
use crate::world::{LEASE_MS, World};

cases!["claims":
    a_member_of_a_flow_that_is_being_cancelled_is_not_claimed,
    a_grant_of_a_member_of_a_cancelled_flow_is_worth_nothing,
    an_operator_does_not_take_a_member_of_a_cancelled_flow,
    members_of_a_flow_cancelled_alone_stay_claimable,
    a_member_that_comes_back_after_its_flow_was_cancelled_is_cancelled,
    a_lost_member_of_a_draining_flow_is_reclaimed,
];

async fn member(world: &World) -> (FlowId, ExecutionId) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let args = CreateFlowArgs { flow_id, flow_kind: "graph".to_owned(), namespace: world.namespace() };
    world.backend.create_flow(args).await.unwrap();
    let args = CreateExecutionArgs { execution_id: Some(world.member_id(flow_id)), ..world.submission() };
    let execution_id = world.submit(args).await;
    world.backend.add_execution_to_flow(AddExecutionToFlowArgs { flow_id, execution_id }).await.unwrap();
    (flow_id, execution_id)
}

/// Flips the flow; its members follow only when time passes.
async fn cancel(world: &World, flow: FlowId, policy: &str) {
    let args: CancelFlowHeaderArgs = serde_json::from_value(json!({
        "flow_id": flow, "reason": "enough", "cancellation_policy": policy, "grace_ms": 30_000,
    }))
    .unwrap();
    world.backend.cancel_flow_header(args).await.unwrap();
}

async fn a_member_of_a_flow_that_is_being_cancelled_is_not_claimed(world: World) {
    for policy in ["cancel_all", "cancel_pending"] {
        let (flow, id) = member(&world).await;
        cancel(&world, flow, policy).await;
        assert!(world.claim().await.is_none());
        assert_eq!(world.state(id).await, PublicState::Waiting);
    }
    let behind = world.create().await;
    assert!(world.claim().await.is_some());
    assert_eq!(world.state(behind).await, PublicState::Active);
}

async fn a_grant_of_a_member_of_a_cancelled_flow_is_worth_nothing(world: World) {
    let (flow, id) = member(&world).await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    cancel(&world, flow, "cancel_all").await;
    contention(world.backend.claim_execution(claim_args(&world, id)).await, "execution_not_leaseable");
}

async fn an_operator_does_not_take_a_member_of_a_cancelled_flow(world: World) {
    let (flow, id) = member(&world).await;
    cancel(&world, flow, "cancel_all").await;
    let args = serde_json::from_value(json!({
        "execution_id": id, "lane_id": world.lane(), "lease_duration_ms": 1000,
    }))
    .unwrap();
    contention(world.backend.issue_grant_and_claim(args).await, "execution_not_eligible");
    contention(world.backend.issue_claim_grant(grant_args(&world, id)).await, "execution_not_eligible");
}

async fn members_of_a_flow_cancelled_alone_stay_claimable(world: World) {
    let (flow, id) = member(&world).await;
    cancel(&world, flow, "flow_only").await;
    assert!(world.claim().await.is_some());
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn a_member_that_comes_back_after_its_flow_was_cancelled_is_cancelled(world: World) {
    let (flow, id) = member(&world).await;
    let handle = world.claim().await.expect("the member is claimable");
    let cancel = world.backend.cancel_flow(flow, CancelFlowPolicy::CancelPending, CancelFlowWait::NoWait {}).await;
    assert!(cancel.is_ok());
    world.run_due().await;
    assert_eq!(world.state(id).await, PublicState::Active);
    world.backend.delay(&handle, world.now().plus(10)).await.unwrap();
    world.pass(10).await;

    assert!(world.claim().await.is_none());

    assert_eq!(world.state(id).await, PublicState::Cancelled);
}

async fn a_lost_member_of_a_draining_flow_is_reclaimed(world: World) {
    let (flow, id) = member(&world).await;
    world.claim().await.expect("the member is claimable");
    cancel(&world, flow, "cancel_pending").await;
    world.pass(LEASE_MS).await;
    assert!(world.claim().await.is_some());
    assert_eq!(world.state(id).await, PublicState::Active);
}
