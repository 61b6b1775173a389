//! An operator takes one specific execution.

use ff_core::backend::claims::IssueGrantAndClaimArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::handle::HandleKind;
use ff_core::ids::{AttemptIndex, ExecutionId, LaneId};
use ff_core::state::PublicState;

use super::{grant_args, interrupted, requiring};
use crate::cases;
use crate::expect::{contention, invalid, not_found, state};
use crate::world::{LEASE_MS, World};

cases!["claims":
    an_operator_takes_a_waiting_execution,
    an_operator_needs_no_capabilities,
    an_operator_continues_an_interrupted_attempt,
    an_operator_leaves_no_grant_behind,
    an_operator_needs_a_lease_that_lasts,
    an_operator_cannot_take_what_is_missing,
    an_operator_cannot_take_what_is_not_runnable,
    an_operator_respects_a_live_grant,
    an_operator_names_the_right_lane,
    an_operator_cannot_take_what_is_not_claimable_now,
    an_operator_cannot_seize_a_delayed_attempt,
];

fn args(world: &World, execution_id: ExecutionId) -> IssueGrantAndClaimArgs {
    IssueGrantAndClaimArgs { execution_id, lane_id: world.lane(), lease_duration_ms: LEASE_MS }
}

async fn an_operator_takes_a_waiting_execution(world: World) {
    let id = world.create().await;
    let answer = world.backend.issue_grant_and_claim(args(&world, id)).await.unwrap();
    assert_eq!((answer.lease_epoch.0, answer.attempt_index), (1, AttemptIndex(0)));
    assert_eq!(answer.handle.kind, HandleKind::Fresh);
    let lease = world.backend.describe_execution(id).await.unwrap().unwrap().current_lease.unwrap();
    assert_eq!((lease.lease_id, lease.worker_instance_id.as_str()), (answer.lease_id, "operator"));
    assert_eq!(lease.expires_at, world.now().plus(LEASE_MS));
    world.backend.complete(&answer.handle, None).await.unwrap();
}

async fn an_operator_needs_no_capabilities(world: World) {
    let id = world.create_with(&requiring(&["gpu"])).await;
    world.backend.issue_grant_and_claim(args(&world, id)).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn an_operator_continues_an_interrupted_attempt(world: World) {
    let id = interrupted(&world).await;
    let before = world.backend.describe_execution(id).await.unwrap().unwrap().current_attempt.unwrap();
    let answer = world.backend.issue_grant_and_claim(args(&world, id)).await.unwrap();
    assert_eq!((answer.attempt_id, answer.attempt_index), (before.attempt_id, AttemptIndex(0)));
    assert_eq!((answer.lease_epoch.0, answer.handle.kind), (2, HandleKind::Resumed));
}

async fn an_operator_leaves_no_grant_behind(world: World) {
    let id = world.create().await;
    let answer = world.backend.issue_grant_and_claim(args(&world, id)).await.unwrap();
    world.backend.delay(&answer.handle, world.now()).await.unwrap();
    world.run_due().await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
}

async fn an_operator_needs_a_lease_that_lasts(world: World) {
    for lease_duration_ms in [0, u64::MAX] {
        let wrong = IssueGrantAndClaimArgs { lease_duration_ms, ..args(&world, world.execution_id()) };
        invalid(world.backend.issue_grant_and_claim(wrong).await, ValidationKind::InvalidInput);
    }
}

async fn an_operator_cannot_take_what_is_missing(world: World) {
    not_found(world.backend.issue_grant_and_claim(args(&world, world.execution_id())).await, Entity::Execution);
}

async fn an_operator_cannot_take_what_is_not_runnable(world: World) {
    let (id, handle) = world.claim_one().await;
    contention(world.backend.issue_grant_and_claim(args(&world, id)).await, "execution_not_eligible");
    world.backend.complete(&handle, None).await.unwrap();
    contention(world.backend.issue_grant_and_claim(args(&world, id)).await, "execution_not_eligible");
}

async fn an_operator_respects_a_live_grant(world: World) {
    let id = world.create().await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    state(world.backend.issue_grant_and_claim(args(&world, id)).await, StateKind::GrantAlreadyExists);
    let elsewhere = IssueGrantAndClaimArgs { lane_id: LaneId::new("elsewhere").unwrap(), ..args(&world, id) };
    state(world.backend.issue_grant_and_claim(elsewhere).await, StateKind::GrantAlreadyExists);
    world.advance(5000);
    world.backend.issue_grant_and_claim(args(&world, id)).await.unwrap();
}

async fn an_operator_names_the_right_lane(world: World) {
    let id = world.create().await;
    let elsewhere = IssueGrantAndClaimArgs { lane_id: LaneId::new("elsewhere").unwrap(), ..args(&world, id) };
    contention(world.backend.issue_grant_and_claim(elsewhere).await, "execution_not_in_eligible_set");
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn an_operator_cannot_take_what_is_not_claimable_now(world: World) {
    let delayed = CreateExecutionArgs { delay_until: Some(world.now().plus(10)), ..world.submission() };
    let id = world.submit(delayed).await;
    contention(world.backend.issue_grant_and_claim(args(&world, id)).await, "execution_not_eligible");
}

async fn an_operator_cannot_seize_a_delayed_attempt(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.delay(&handle, world.now().plus(100)).await.unwrap();
    contention(world.backend.issue_grant_and_claim(args(&world, id)).await, "execution_not_eligible");
    assert_eq!(world.state(id).await, PublicState::Delayed);
}
