//! Consuming a claim grant.

use ff_core::backend::claims::{ClaimExecutionArgs, ClaimExecutionResult, ClaimedExecution, IssueClaimGrantArgs};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{Entity, ValidationKind};
use ff_core::handle::HandleKind;
use ff_core::ids::{AttemptIndex, ExecutionId, LaneId};
use ff_core::policy::{ExecutionPolicy, TimeoutPolicy};
use ff_core::state::{AttemptType, PublicState};

use super::{claim_args, grant_args, interrupted};
use crate::cases;
use crate::expect::{contention, invalid, not_found};
use crate::world::{LEASE_MS, World, worker};

cases!["claims":
    a_grant_becomes_a_lease,
    a_repeated_claim_gets_the_same_answer,
    another_lease_id_finds_it_taken,
    a_repetition_by_another_worker_is_refused,
    a_claim_needs_a_lease_that_lasts,
    a_missing_execution_cannot_be_claimed,
    what_is_not_runnable_cannot_be_claimed,
    what_is_not_claimable_now_cannot_be_claimed,
    an_interrupted_attempt_asks_for_the_other_path,
    a_claim_without_a_grant_is_refused,
    the_grant_of_another_worker_is_refused,
    the_grant_of_another_process_is_refused,
    a_claim_in_another_lane_is_refused,
    an_expired_grant_is_refused,
    an_expired_grant_is_named_only_to_its_worker,
    another_attempt_index_is_refused_and_keeps_the_grant,
    a_grant_is_consumed_once,
    a_claim_can_set_timeout_and_deadline,
    the_policy_gives_the_attempt_timeout_of_a_granted_claim,
    a_retry_and_a_replay_name_their_attempts,
];

async fn granted(world: &World) -> ExecutionId {
    let id = world.create().await;
    world.backend.issue_claim_grant(grant_args(world, id)).await.unwrap();
    id
}

async fn claimed(world: &World, args: ClaimExecutionArgs) -> ClaimedExecution {
    let ClaimExecutionResult::Claimed(claimed) = world.backend.claim_execution(args).await.unwrap();
    claimed
}

async fn a_grant_becomes_a_lease(world: World) {
    let id = granted(&world).await;
    let args = claim_args(&world, id);

    let answer = claimed(&world, args.clone()).await;

    assert_eq!((answer.execution_id, answer.lease_id, answer.attempt_id), (id, args.lease_id, args.attempt_id));
    assert_eq!((answer.lease_epoch.0, answer.attempt_index), (1, AttemptIndex(0)));
    assert_eq!(answer.attempt_type, AttemptType::Initial);
    assert_eq!(answer.lease_expires_at, world.now().plus(LEASE_MS));
    assert_eq!(answer.handle.kind, HandleKind::Fresh);
    assert_eq!(world.state(id).await, PublicState::Active);
    world.backend.complete(&answer.handle, None).await.unwrap();
}

async fn a_repeated_claim_gets_the_same_answer(world: World) {
    let id = granted(&world).await;
    let args = claim_args(&world, id);
    let first = claimed(&world, args.clone()).await;
    world.advance(100);
    let second = claimed(&world, args).await;
    assert_eq!(first, second);
    assert_eq!(world.backend.read_total_attempt_count(id).await.unwrap(), 1);
}

async fn another_lease_id_finds_it_taken(world: World) {
    let id = granted(&world).await;
    claimed(&world, claim_args(&world, id)).await;
    contention(world.backend.claim_execution(claim_args(&world, id)).await, "execution_not_leaseable");
}

async fn a_repetition_by_another_worker_is_refused(world: World) {
    let id = granted(&world).await;
    let args = claim_args(&world, id);
    claimed(&world, args.clone()).await;
    let (worker_id, worker_instance_id) = worker("worker-b");
    let theirs = ClaimExecutionArgs { worker_id, worker_instance_id, ..args };
    contention(world.backend.claim_execution(theirs).await, "execution_not_leaseable");
}

async fn a_claim_needs_a_lease_that_lasts(world: World) {
    for lease_ttl_ms in [0, u64::MAX] {
        let args = ClaimExecutionArgs { lease_ttl_ms, ..claim_args(&world, world.execution_id()) };
        invalid(world.backend.claim_execution(args).await, ValidationKind::InvalidInput);
    }
    let args = ClaimExecutionArgs { attempt_timeout_ms: Some(u64::MAX), ..claim_args(&world, world.execution_id()) };
    invalid(world.backend.claim_execution(args).await, ValidationKind::InvalidInput);
}

async fn a_missing_execution_cannot_be_claimed(world: World) {
    not_found(world.backend.claim_execution(claim_args(&world, world.execution_id())).await, Entity::Execution);
    let outside = claim_args(&world, ExecutionId::new(300, world.uuid()));
    invalid(world.backend.claim_execution(outside).await, ValidationKind::InvalidInput);
}

async fn what_is_not_runnable_cannot_be_claimed(world: World) {
    let (active, handle) = world.claim_one().await;
    contention(world.backend.claim_execution(claim_args(&world, active)).await, "execution_not_leaseable");
    world.backend.complete(&handle, None).await.unwrap();
    contention(world.backend.claim_execution(claim_args(&world, active)).await, "execution_not_leaseable");
}

async fn what_is_not_claimable_now_cannot_be_claimed(world: World) {
    let delayed =
        world.submit(CreateExecutionArgs { delay_until: Some(world.now().plus(10)), ..world.submission() }).await;
    contention(world.backend.claim_execution(claim_args(&world, delayed)).await, "execution_not_leaseable");
}

async fn an_interrupted_attempt_asks_for_the_other_path(world: World) {
    let id = interrupted(&world).await;
    let args = ClaimExecutionArgs { expected_attempt_index: AttemptIndex(1), ..claim_args(&world, id) };
    contention(world.backend.claim_execution(args.clone()).await, "use_claim_resumed_execution");
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    contention(world.backend.claim_execution(args).await, "use_claim_resumed_execution");
}

async fn a_claim_without_a_grant_is_refused(world: World) {
    let id = world.create().await;
    contention(world.backend.claim_execution(claim_args(&world, id)).await, "invalid_claim_grant");
}

async fn the_grant_of_another_worker_is_refused(world: World) {
    let id = granted(&world).await;
    let (worker_id, worker_instance_id) = worker("worker-b");
    let args = ClaimExecutionArgs { worker_id, worker_instance_id, ..claim_args(&world, id) };
    contention(world.backend.claim_execution(args).await, "invalid_claim_grant");
    claimed(&world, claim_args(&world, id)).await;
}

async fn the_grant_of_another_process_is_refused(world: World) {
    let id = granted(&world).await;
    let args = ClaimExecutionArgs { worker_instance_id: worker("worker-b").1, ..claim_args(&world, id) };
    contention(world.backend.claim_execution(args).await, "invalid_claim_grant");
}

async fn a_claim_in_another_lane_is_refused(world: World) {
    let id = granted(&world).await;
    let args = ClaimExecutionArgs { lane_id: LaneId::new("elsewhere").unwrap(), ..claim_args(&world, id) };
    contention(world.backend.claim_execution(args).await, "invalid_claim_grant");
}

async fn an_expired_grant_is_refused(world: World) {
    let id = granted(&world).await;
    world.advance(5000);
    contention(world.backend.claim_execution(claim_args(&world, id)).await, "claim_grant_expired");
    contention(world.backend.claim_execution(claim_args(&world, id)).await, "invalid_claim_grant");
    assert!(world.claim().await.is_some());
}

async fn an_expired_grant_is_named_only_to_its_worker(world: World) {
    let id = granted(&world).await;
    world.advance(5000);
    let (worker_id, worker_instance_id) = worker("worker-b");
    let theirs = ClaimExecutionArgs { worker_id, worker_instance_id, ..claim_args(&world, id) };
    contention(world.backend.claim_execution(theirs).await, "invalid_claim_grant");
}

async fn another_attempt_index_is_refused_and_keeps_the_grant(world: World) {
    let id = granted(&world).await;
    let args = ClaimExecutionArgs { expected_attempt_index: AttemptIndex(1), ..claim_args(&world, id) };
    contention(world.backend.claim_execution(args).await, "execution_not_leaseable");
    claimed(&world, claim_args(&world, id)).await;
}

async fn a_grant_is_consumed_once(world: World) {
    let id = granted(&world).await;
    let first = claimed(&world, claim_args(&world, id)).await;
    world.backend.delay(&first.handle, world.now()).await.unwrap();
    world.run_due().await;
    contention(world.backend.claim_execution(claim_args(&world, id)).await, "use_claim_resumed_execution");
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
}

async fn a_claim_can_set_timeout_and_deadline(world: World) {
    let id = granted(&world).await;
    let args = ClaimExecutionArgs {
        attempt_timeout_ms: Some(100),
        execution_deadline_at: Some(world.now().plus(50)),
        ..claim_args(&world, id)
    };
    claimed(&world, args).await;
    world.pass(50).await;
    assert_eq!(world.state(id).await, PublicState::Expired);

    let id = granted(&world).await;
    claimed(&world, ClaimExecutionArgs { attempt_timeout_ms: Some(100), ..claim_args(&world, id) }).await;
    world.pass(99).await;
    assert_eq!(world.state(id).await, PublicState::Active);
    world.pass(1).await;
    assert_ne!(world.state(id).await, PublicState::Active);
}

async fn the_policy_gives_the_attempt_timeout_of_a_granted_claim(world: World) {
    let timeouts = TimeoutPolicy { attempt_timeout_ms: Some(100), ..TimeoutPolicy::default() };
    let policy = ExecutionPolicy { timeout_policy: Some(timeouts), ..ExecutionPolicy::default() };
    let id = world.create_with(&policy).await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    claimed(&world, claim_args(&world, id)).await;
    world.pass(100).await;
    assert_ne!(world.state(id).await, PublicState::Active);
}

async fn a_retry_and_a_replay_name_their_attempts(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    let replay = serde_json::from_value(serde_json::json!({"execution_id": id})).unwrap();
    world.backend.replay_execution(replay).await.unwrap();
    let grant = IssueClaimGrantArgs { ..grant_args(&world, id) };
    world.backend.issue_claim_grant(grant).await.unwrap();
    let args = ClaimExecutionArgs { expected_attempt_index: AttemptIndex(1), ..claim_args(&world, id) };
    let answer = claimed(&world, args).await;
    assert_eq!(answer.attempt_type, AttemptType::Replay);
    assert_eq!((answer.attempt_index, answer.lease_epoch.0), (AttemptIndex(1), 2));
}
