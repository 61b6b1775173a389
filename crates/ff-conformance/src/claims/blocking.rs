//! Holding executions back by hand, and letting them go.

use ff_core::Result;
use ff_core::backend::claims::{
    AdmissionBlock, BlockExecutionForAdmissionArgs, BlockExecutionForAdmissionOutcome, BlockRouteArgs,
    BlockRouteOutcome,
};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::{ExecutionId, LaneId};
use ff_core::state::{AttemptState, BlockingReason, EligibilityState, PublicState};

use super::{info, interrupted};
use crate::cases;
use crate::expect::{contention, invalid, not_found};
use crate::world::World;

cases!["claims":
    a_route_block_parks_a_claimable_execution,
    a_route_block_has_one_reason,
    a_route_block_of_something_else_is_rejected,
    a_second_route_block_is_rejected,
    a_missing_execution_is_not_blocked,
    a_block_detail_is_a_free_string,
    each_reason_implies_one_eligibility,
    a_block_for_an_unknown_reason_is_refused,
    a_block_never_overwrites_another,
    a_block_in_another_lane_is_rejected,
    an_unblocked_execution_is_claimable_again,
    an_empty_reason_unblocks_whatever_holds_it,
    an_unblock_for_another_reason_is_refused,
    an_unblock_knows_its_reasons,
    only_a_block_can_be_lifted,
    an_unblocked_attempt_is_continued,
];

fn route(world: &World, execution_id: ExecutionId) -> BlockRouteArgs {
    BlockRouteArgs {
        execution_id,
        lane_id: world.lane(),
        reason_code: "waiting_for_capable_worker".to_owned(),
        reason_detail: "nobody has a gpu".to_owned(),
    }
}

fn admission(world: &World, execution_id: ExecutionId, reason: &str) -> BlockExecutionForAdmissionArgs {
    BlockExecutionForAdmissionArgs {
        execution_id,
        lane_id: world.lane(),
        reason: reason.to_owned(),
        reason_detail: Some("by hand".to_owned()),
    }
}

async fn block(world: &World, id: ExecutionId, reason: &str) -> Result<BlockExecutionForAdmissionOutcome> {
    world.backend.block_execution_for_admission(admission(world, id, reason)).await
}

async fn unblock(world: &World, id: ExecutionId, reason: &str) -> Result<()> {
    world.backend.unblock_execution(id, reason, world.now()).await
}

#[track_caller]
fn rejected(outcome: &BlockExecutionForAdmissionOutcome) {
    assert!(matches!(outcome, BlockExecutionForAdmissionOutcome::Rejected { .. }), "{outcome:?}");
}

async fn a_route_block_parks_a_claimable_execution(world: World) {
    let id = world.create().await;
    let answer = world.backend.block_route(route(&world, id)).await.unwrap();
    assert_eq!(answer, BlockRouteOutcome::Blocked { execution_id: id });
    let found = info(&world, id).await;
    assert_eq!(found.state_vector.eligibility_state, EligibilityState::BlockedByRoute);
    assert_eq!(found.state_vector.blocking_reason, BlockingReason::WaitingForCapableWorker);
    assert_eq!(found.public_state, PublicState::Waiting);
    assert_eq!(found.blocking_detail, "nobody has a gpu");
    assert!(world.claim().await.is_none());
}

async fn a_route_block_has_one_reason(world: World) {
    for reason in ["", "waiting_for_budget", "paused_by_operator", "nonsense"] {
        let args = BlockRouteArgs { reason_code: reason.to_owned(), ..route(&world, world.execution_id()) };
        invalid(world.backend.block_route(args).await, ValidationKind::InvalidBlockingReason);
    }
}

async fn a_route_block_of_something_else_is_rejected(world: World) {
    let (id, handle) = world.claim_one().await;
    let answer = world.backend.block_route(route(&world, id)).await.unwrap();
    assert!(matches!(answer, BlockRouteOutcome::Rejected { .. }), "{answer:?}");
    world.backend.complete(&handle, None).await.unwrap();
    let answer = world.backend.block_route(route(&world, id)).await.unwrap();
    assert!(matches!(answer, BlockRouteOutcome::Rejected { .. }), "{answer:?}");
}

async fn a_second_route_block_is_rejected(world: World) {
    let id = world.create().await;
    world.backend.block_route(route(&world, id)).await.unwrap();
    let answer = world.backend.block_route(route(&world, id)).await.unwrap();
    assert!(matches!(answer, BlockRouteOutcome::Rejected { .. }), "{answer:?}");
}

async fn a_missing_execution_is_not_blocked(world: World) {
    let missing = world.execution_id();
    not_found(world.backend.block_route(route(&world, missing)).await, Entity::Execution);
    not_found(block(&world, missing, "waiting_for_quota").await, Entity::Execution);
    not_found(unblock(&world, missing, "waiting_for_quota").await, Entity::Execution);
    let outside = ExecutionId::new(300, world.uuid());
    invalid(world.backend.block_route(route(&world, outside)).await, ValidationKind::InvalidInput);
    invalid(block(&world, outside, "waiting_for_quota").await, ValidationKind::InvalidInput);
    invalid(unblock(&world, outside, "").await, ValidationKind::InvalidInput);
}

async fn a_block_detail_is_a_free_string(world: World) {
    let id = world.create().await;
    let args = BlockRouteArgs { reason_detail: "d".repeat(257), ..route(&world, id) };
    invalid(world.backend.block_route(args).await, ValidationKind::InvalidInput);
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn each_reason_implies_one_eligibility(world: World) {
    for reason in AdmissionBlock::ALL.iter().copied() {
        let id = world.create().await;
        let answer = block(&world, id, reason.as_str()).await.unwrap();
        assert_eq!(answer, BlockExecutionForAdmissionOutcome::Blocked { execution_id: id, reason });
        let found = info(&world, id).await;
        assert_eq!(found.state_vector.eligibility_state, reason.eligibility());
        assert_eq!(found.state_vector.blocking_reason, BlockingReason::from(reason));
        let expected = match reason {
            AdmissionBlock::WaitingForBudget | AdmissionBlock::WaitingForQuota => PublicState::RateLimited,
            _ => PublicState::Waiting,
        };
        assert_eq!(found.public_state, expected);
        assert_eq!(found.blocking_detail, "by hand");
    }
    world.pass(60_000).await;
    assert!(world.claim().await.is_none(), "what was blocked by hand stays blocked");
}

async fn a_block_for_an_unknown_reason_is_refused(world: World) {
    for reason in ["", "waiting_for_worker", "waiting_for_children", "paused_by_flow_cancel", "nonsense"] {
        invalid(block(&world, world.execution_id(), reason).await, ValidationKind::InvalidBlockingReason);
    }
}

async fn a_block_never_overwrites_another(world: World) {
    let delayed =
        world.submit(CreateExecutionArgs { delay_until: Some(world.now().plus(10)), ..world.submission() }).await;
    rejected(&block(&world, delayed, "waiting_for_budget").await.unwrap());
    assert_eq!(world.state(delayed).await, PublicState::Delayed);

    let id = world.create().await;
    block(&world, id, "paused_by_operator").await.unwrap();
    rejected(&block(&world, id, "waiting_for_budget").await.unwrap());
    rejected(&block(&world, id, "paused_by_operator").await.unwrap());
    assert_eq!(info(&world, id).await.state_vector.eligibility_state, EligibilityState::BlockedByOperator);

    let (active, _) = world.claim_one().await;
    rejected(&block(&world, active, "waiting_for_budget").await.unwrap());
}

async fn a_block_in_another_lane_is_rejected(world: World) {
    let id = world.create().await;
    let elsewhere = LaneId::new("elsewhere").unwrap();
    let args = BlockExecutionForAdmissionArgs { lane_id: elsewhere, ..admission(&world, id, "waiting_for_budget") };
    rejected(&world.backend.block_execution_for_admission(args).await.unwrap());
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn an_unblocked_execution_is_claimable_again(world: World) {
    for reason in AdmissionBlock::ALL {
        let id = world.create().await;
        block(&world, id, reason.as_str()).await.unwrap();
        unblock(&world, id, reason.as_str()).await.unwrap();
        let found = info(&world, id).await;
        assert_eq!(found.state_vector.eligibility_state, EligibilityState::EligibleNow);
        assert_eq!(found.blocking_detail, "");
        assert!(world.claim().await.is_some());
        assert_eq!(world.state(id).await, PublicState::Active);
    }
}

async fn an_empty_reason_unblocks_whatever_holds_it(world: World) {
    let id = world.create().await;
    block(&world, id, "paused_by_policy").await.unwrap();
    unblock(&world, id, "").await.unwrap();
    contention(unblock(&world, id, "").await, "execution_not_eligible");
}

async fn an_unblock_for_another_reason_is_refused(world: World) {
    let id = world.create().await;
    block(&world, id, "paused_by_operator").await.unwrap();
    contention(unblock(&world, id, "waiting_for_budget").await, "execution_not_eligible");
    unblock(&world, id, "paused_by_operator").await.unwrap();
    contention(unblock(&world, id, "paused_by_operator").await, "execution_not_eligible");
}

async fn an_unblock_knows_its_reasons(world: World) {
    for reason in ["nonsense", "paused_by_flow_cancel", "waiting_for_children", "none"] {
        invalid(unblock(&world, world.execution_id(), reason).await, ValidationKind::InvalidBlockingReason);
    }
}

async fn only_a_block_can_be_lifted(world: World) {
    let delayed =
        world.submit(CreateExecutionArgs { delay_until: Some(world.now().plus(10)), ..world.submission() }).await;
    contention(unblock(&world, delayed, "").await, "execution_not_eligible");
    let (active, handle) = world.claim_one().await;
    contention(unblock(&world, active, "").await, "execution_not_eligible");
    world.backend.complete(&handle, None).await.unwrap();
    contention(unblock(&world, active, "").await, "execution_not_eligible");
}

async fn an_unblocked_attempt_is_continued(world: World) {
    let id = interrupted(&world).await;
    block(&world, id, "waiting_for_quota").await.unwrap();
    unblock(&world, id, "waiting_for_quota").await.unwrap();
    assert_eq!(info(&world, id).await.state_vector.attempt_state, AttemptState::AttemptInterrupted);
    assert_eq!(world.claim().await.unwrap().kind.as_str(), "resumed");
}
