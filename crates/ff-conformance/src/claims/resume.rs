//! Consuming a grant to continue an interrupted attempt.

use ff_core::backend::claims::{
    ClaimForWorkerOutcome, ClaimResumedExecutionArgs, ClaimResumedExecutionResult, ClaimedResumedExecution, Grant,
    GrantKind, ResumeToken,
};
use ff_core::error::{Entity, ValidationKind};
use ff_core::handle::HandleKind;
use ff_core::ids::{AttemptIndex, ExecutionId, LeaseId};
use ff_core::policy::{ExecutionPolicy, TimeoutPolicy};
use ff_core::state::PublicState;

use super::reserve::worker_args;
use super::{grant_args, interrupted};
use crate::cases;
use crate::expect::{contention, invalid, not_found};
use crate::world::{LEASE_MS, World, worker};

cases!["claims":
    a_resume_grant_continues_the_same_attempt,
    a_repeated_resumed_claim_gets_the_same_answer,
    another_lease_id_finds_the_resumed_attempt_taken,
    a_resumed_claim_needs_a_lease_that_lasts,
    a_missing_execution_cannot_be_resumed,
    what_is_not_runnable_cannot_be_resumed,
    a_fresh_execution_is_not_a_resumed_one,
    a_delayed_attempt_cannot_be_resumed_before_its_time,
    a_resumed_claim_without_a_grant_is_refused,
    a_resumed_claim_by_another_worker_is_refused,
    an_expired_resume_grant_is_refused_and_removed,
    another_current_index_is_refused,
    a_resumed_attempt_gets_the_time_it_had_left,
    a_resumed_claim_can_set_the_time_left,
    a_token_becomes_a_resumed_handle,
    a_token_of_something_no_longer_resumable_yields_nothing,
    a_token_of_another_worker_or_grant_yields_nothing,
    an_expired_token_is_told,
    a_token_of_a_missing_execution_is_not_found,
];

fn args(world: &World, execution_id: ExecutionId) -> ClaimResumedExecutionArgs {
    let (worker_id, worker_instance_id) = world.worker();
    ClaimResumedExecutionArgs {
        execution_id,
        worker_id,
        worker_instance_id,
        lane_id: world.lane(),
        lease_id: LeaseId::from_uuid(world.uuid()),
        lease_ttl_ms: LEASE_MS,
        current_attempt_index: AttemptIndex(0),
        remaining_attempt_timeout_ms: None,
    }
}

async fn granted(world: &World) -> ExecutionId {
    let id = interrupted(world).await;
    world.backend.issue_claim_grant(grant_args(world, id)).await.unwrap();
    id
}

async fn claimed(world: &World, args: ClaimResumedExecutionArgs) -> ClaimedResumedExecution {
    let ClaimResumedExecutionResult::Claimed(claimed) = world.backend.claim_resumed_execution(args).await.unwrap();
    claimed
}

/// A resume grant as the scheduler gives it.
async fn token(world: &World) -> ResumeToken {
    let answer = world.backend.claim_for_worker(worker_args(world, "worker-a")).await.unwrap();
    let ClaimForWorkerOutcome::Granted(grant) = answer else { panic!("expected a grant, got {answer:?}") };
    let (worker_id, worker_instance_id) = world.worker();
    ResumeToken { grant, worker_id, worker_instance_id, lease_ttl_ms: LEASE_MS }
}

async fn a_resume_grant_continues_the_same_attempt(world: World) {
    let id = granted(&world).await;
    let before = world.backend.describe_execution(id).await.unwrap().unwrap().current_attempt.unwrap();
    let args = args(&world, id);

    let answer = claimed(&world, args.clone()).await;

    assert_eq!((answer.execution_id, answer.lease_id), (id, args.lease_id));
    assert_eq!((answer.attempt_id, answer.attempt_index), (before.attempt_id, AttemptIndex(0)));
    assert_eq!(answer.lease_epoch.0, 2);
    assert_eq!(answer.lease_expires_at, world.now().plus(LEASE_MS));
    assert_eq!(answer.handle.kind, HandleKind::Resumed);
    assert_eq!(world.backend.read_total_attempt_count(id).await.unwrap(), 1);
    world.backend.complete(&answer.handle, None).await.unwrap();
}

async fn a_repeated_resumed_claim_gets_the_same_answer(world: World) {
    let id = granted(&world).await;
    let args = args(&world, id);
    let first = claimed(&world, args.clone()).await;
    world.advance(5);
    assert_eq!(claimed(&world, args).await, first);
}

async fn another_lease_id_finds_the_resumed_attempt_taken(world: World) {
    let id = granted(&world).await;
    claimed(&world, args(&world, id)).await;
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "execution_not_leaseable");
}

async fn a_resumed_claim_needs_a_lease_that_lasts(world: World) {
    for lease_ttl_ms in [0, u64::MAX] {
        let wrong = ClaimResumedExecutionArgs { lease_ttl_ms, ..args(&world, world.execution_id()) };
        invalid(world.backend.claim_resumed_execution(wrong).await, ValidationKind::InvalidInput);
    }
    let remaining_attempt_timeout_ms = Some(u64::MAX);
    let wrong = ClaimResumedExecutionArgs { remaining_attempt_timeout_ms, ..args(&world, world.execution_id()) };
    invalid(world.backend.claim_resumed_execution(wrong).await, ValidationKind::InvalidInput);
}

async fn a_missing_execution_cannot_be_resumed(world: World) {
    not_found(world.backend.claim_resumed_execution(args(&world, world.execution_id())).await, Entity::Execution);
}

async fn what_is_not_runnable_cannot_be_resumed(world: World) {
    let (id, handle) = world.claim_one().await;
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "execution_not_leaseable");
    world.backend.complete(&handle, None).await.unwrap();
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "execution_not_leaseable");
}

async fn a_fresh_execution_is_not_a_resumed_one(world: World) {
    let id = world.create().await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "not_a_resumed_execution");
}

async fn a_delayed_attempt_cannot_be_resumed_before_its_time(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.delay(&handle, world.now().plus(100)).await.unwrap();
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "execution_not_leaseable");
}

async fn a_resumed_claim_without_a_grant_is_refused(world: World) {
    let id = interrupted(&world).await;
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "invalid_claim_grant");
}

async fn a_resumed_claim_by_another_worker_is_refused(world: World) {
    let id = granted(&world).await;
    let (worker_id, worker_instance_id) = worker("worker-b");
    let theirs = ClaimResumedExecutionArgs { worker_id, worker_instance_id, ..args(&world, id) };
    contention(world.backend.claim_resumed_execution(theirs).await, "invalid_claim_grant");
    claimed(&world, args(&world, id)).await;
}

async fn an_expired_resume_grant_is_refused_and_removed(world: World) {
    let id = granted(&world).await;
    world.advance(5000);
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "claim_grant_expired");
    contention(world.backend.claim_resumed_execution(args(&world, id)).await, "invalid_claim_grant");
}

async fn another_current_index_is_refused(world: World) {
    let id = granted(&world).await;
    let moved = ClaimResumedExecutionArgs { current_attempt_index: AttemptIndex(1), ..args(&world, id) };
    contention(world.backend.claim_resumed_execution(moved).await, "execution_not_leaseable");
    claimed(&world, args(&world, id)).await;
}

fn timed() -> ExecutionPolicy {
    let timeouts = TimeoutPolicy { attempt_timeout_ms: Some(100), ..TimeoutPolicy::default() };
    ExecutionPolicy { timeout_policy: Some(timeouts), ..ExecutionPolicy::default() }
}

async fn a_resumed_attempt_gets_the_time_it_had_left(world: World) {
    let (id, handle) = world.claim_one_with(&timed()).await;
    world.advance(60);
    world.backend.delay(&handle, world.now().plus(500)).await.unwrap();
    world.pass(500).await;
    assert!(world.claim().await.is_some());
    world.pass(39).await;
    assert_eq!(world.state(id).await, PublicState::Active);
    world.pass(1).await;
    assert_ne!(world.state(id).await, PublicState::Active);
}

async fn a_resumed_claim_can_set_the_time_left(world: World) {
    for (given, after) in [(Some(30), PublicState::Failed), (Some(0), PublicState::Active)] {
        let (id, handle) = world.claim_one_with(&timed()).await;
        world.backend.delay(&handle, world.now().plus(10)).await.unwrap();
        world.pass(10).await;
        world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
        let args = ClaimResumedExecutionArgs { remaining_attempt_timeout_ms: given, ..args(&world, id) };
        let answer = claimed(&world, args).await;
        world.pass(200).await;
        let found = world.state(id).await;
        assert_eq!(found == PublicState::Active, after == PublicState::Active, "{given:?}: {found}");
        // The next round must not find it.
        let _ = world.backend.complete(&answer.handle, None).await;
    }
}

async fn a_token_becomes_a_resumed_handle(world: World) {
    let id = interrupted(&world).await;
    let token = token(&world).await;
    let handle = world.backend.claim_from_resume_grant(token).await.unwrap().expect("resumable");
    assert_eq!(handle.kind, HandleKind::Resumed);
    assert_eq!(world.state(id).await, PublicState::Active);
    world.backend.complete(&handle, None).await.unwrap();
}

async fn a_token_of_something_no_longer_resumable_yields_nothing(world: World) {
    let id = interrupted(&world).await;
    let token = token(&world).await;
    let handle = world.backend.claim_from_resume_grant(token.clone()).await.unwrap().unwrap();
    assert_eq!(world.backend.claim_from_resume_grant(token.clone()).await.unwrap(), None, "already active");
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(world.backend.claim_from_resume_grant(token).await.unwrap(), None, "terminal");
    assert_eq!(world.state(id).await, PublicState::Completed);
}

async fn a_token_of_another_worker_or_grant_yields_nothing(world: World) {
    let id = interrupted(&world).await;
    let token = token(&world).await;
    let (worker_id, worker_instance_id) = worker("worker-b");
    let theirs = ResumeToken { worker_id, worker_instance_id, ..token.clone() };
    assert_eq!(world.backend.claim_from_resume_grant(theirs).await.unwrap(), None);
    let forged = Grant { grant_key: "guessed".to_owned(), ..token.grant.clone() };
    let forged = ResumeToken { grant: forged, ..token.clone() };
    assert_eq!(world.backend.claim_from_resume_grant(forged).await.unwrap(), None);
    for lease_ttl_ms in [0, u64::MAX] {
        let wrong = ResumeToken { lease_ttl_ms, ..token.clone() };
        invalid(world.backend.claim_from_resume_grant(wrong).await, ValidationKind::InvalidInput);
    }
    assert_eq!(world.state(id).await, PublicState::Waiting);
    assert!(world.backend.claim_from_resume_grant(token).await.unwrap().is_some());
}

async fn an_expired_token_is_told(world: World) {
    interrupted(&world).await;
    let token = token(&world).await;
    world.advance(5000);
    contention(world.backend.claim_from_resume_grant(token).await, "claim_grant_expired");
}

async fn a_token_of_a_missing_execution_is_not_found(world: World) {
    let execution_id = world.execution_id();
    let grant = Grant {
        kind: GrantKind::Resume,
        execution_id,
        partition_key: execution_id.partition().into(),
        grant_key: "none".to_owned(),
        expires_at_ms: world.now(),
        lane_id: world.lane(),
    };
    let (worker_id, worker_instance_id) = world.worker();
    let token = ResumeToken { grant, worker_id, worker_instance_id, lease_ttl_ms: LEASE_MS };
    not_found(world.backend.claim_from_resume_grant(token).await, Entity::Execution);
}
