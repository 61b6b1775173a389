//! Attempt timeouts and deadlines.

use ff_core::TimestampMs;
use ff_core::backend::attempts::FailOutcome;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::leases::ExpirePhase;
use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange, ReleaseReason};
use ff_core::error::ValidationKind;
use ff_core::ids::ExecutionId;
use ff_core::rules::retry::FailureClass;
use ff_core::state::{AttemptState, BlockingReason, OwnershipState, PublicState, StreamCloseReason, TerminalOutcome};

use crate::attempts::owner::{
    Act, Form, Owner, act, closed, complete, fail, field, info, not_active, own, own_with, retrying, revoke, run_out,
    take_as, timed, watch,
};
use crate::cases;
use crate::expect::invalid;
use crate::harness::Damage;
use crate::world::{LEASE_MS, World};

cases!["leases":
    an_attempt_that_ran_too_long_is_retried,
    an_attempt_that_ran_too_long_without_retries_expires,
    an_attempt_timeout_asks_for_the_category,
    an_attempt_timeout_follows_renewals_not,
    an_attempt_timeout_that_is_not_due_does_nothing,
    an_attempt_timeout_acts_on_active_executions_only,
    a_caller_cannot_bring_a_timer_forward,
    an_earlier_caller_waits_for_its_own_time,
    a_deadline_ends_an_execution_from_any_state,
    a_deadline_is_final_whatever_the_retry_policy_says,
    a_deadline_in_the_past_is_accepted_and_fires,
    a_deadline_of_a_finished_execution_does_nothing,
    a_timer_of_a_missing_execution_does_nothing,
    a_timer_tells_its_watchers_once,
    a_timer_closes_the_stream,
    an_expired_execution_refuses_its_owner,
    a_lost_reply_to_a_failure_after_a_timeout_gets_the_retry,
    an_unreadable_policy_ends_an_attempt_that_ran_too_long,
    a_timer_of_an_unreadable_execution_is_reported_as_corruption,
];

async fn with_deadline(world: &World, after_ms: u64) -> ExecutionId {
    let deadline = Some(world.now().plus(after_ms));
    world.submit(CreateExecutionArgs { execution_deadline_at: deadline, ..world.submission() }).await
}

async fn expire(world: &World, id: ExecutionId, phase: ExpirePhase) {
    world.backend.expire_execution(id, phase, world.now()).await.unwrap();
}

async fn an_attempt_that_ran_too_long_is_retried(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(1))).await;

    world.pass(5_000).await;

    let info = info(&world, owner.id).await;
    assert_eq!(info.public_state, PublicState::Delayed);
    assert_eq!(info.state_vector.attempt_state, AttemptState::PendingRetryAttempt);
    assert_eq!(info.state_vector.blocking_reason, BlockingReason::WaitingForRetryBackoff);
    assert_eq!(info.state_vector.ownership_state, OwnershipState::Unowned);
    world.pass(1_000).await;
    let second = take_as(&world, owner.id, 1, "worker-b").await;
    world.pass(4_999).await;
    assert_eq!(world.state(owner.id).await, PublicState::Active);
    world.pass(1).await;
    assert_eq!(world.state(second.id).await, PublicState::Expired, "the only retry is used up");
}

async fn an_attempt_that_ran_too_long_without_retries_expires(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(0))).await;
    world.pass(4_999).await;
    assert_eq!(world.state(owner.id).await, PublicState::Active);

    world.pass(1).await;

    let info = info(&world, owner.id).await;
    assert_eq!(info.state_vector.terminal_outcome, TerminalOutcome::Expired);
    assert_eq!(info.state_vector.attempt_state, AttemptState::AttemptTerminal);
    assert_eq!(info.completed_at, Some(world.now()));
    assert_eq!(field(&world, owner.id, "failure_reason").await.as_deref(), Some("attempt_timeout"));
}

async fn an_attempt_timeout_asks_for_the_category(world: World) {
    let mut policy = timed(5_000, retrying(3));
    policy.retry_policy.as_mut().unwrap().retryable_categories = vec!["transient".to_owned()];
    let owner = own_with(&world, &policy).await;
    world.pass(5_000).await;
    assert_eq!(world.state(owner.id).await, PublicState::Expired);
}

async fn an_attempt_timeout_follows_renewals_not(world: World) {
    let owner = own_with(&world, &timed(50_000, retrying(0))).await;
    for _ in 0..4 {
        world.pass(12_000).await;
        world.backend.renew(&owner.handle).await.unwrap();
    }
    world.pass(2_000).await;
    assert_eq!(world.state(owner.id).await, PublicState::Expired);
}

async fn an_attempt_timeout_that_is_not_due_does_nothing(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(0))).await;
    let unlimited = own(&world).await;
    world.advance(4_999);
    for id in [owner.id, unlimited.id] {
        expire(&world, id, ExpirePhase::AttemptTimeout).await;
        expire(&world, id, ExpirePhase::ExecutionDeadline).await;
        assert_eq!(world.state(id).await, PublicState::Active);
    }
    world.advance(1);
    expire(&world, owner.id, ExpirePhase::AttemptTimeout).await;
    assert_eq!(world.state(owner.id).await, PublicState::Expired);
}

async fn an_attempt_timeout_acts_on_active_executions_only(world: World) {
    let policy = timed(5_000, retrying(3));
    let waiting = world.create_with(&policy).await;
    let delayed = own_with(&world, &policy).await;
    act(&world, Act::Delay, Form::Handle, &delayed).await.unwrap();
    let ended = own_with(&world, &policy).await;
    complete(&world, Form::Handle, &ended, None).await.unwrap();
    world.advance(60_000);
    let before =
        [(waiting, PublicState::Waiting), (delayed.id, PublicState::Delayed), (ended.id, PublicState::Completed)];
    for (id, state) in before {
        expire(&world, id, ExpirePhase::AttemptTimeout).await;
        assert_eq!(world.state(id).await, state);
    }
}

async fn a_caller_cannot_bring_a_timer_forward(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(0))).await;
    let id = with_deadline(&world, 5_000).await;
    let later = world.now().plus(60_000);
    world.backend.expire_execution(owner.id, ExpirePhase::AttemptTimeout, later).await.unwrap();
    world.backend.expire_execution(id, ExpirePhase::ExecutionDeadline, later).await.unwrap();
    assert_eq!(world.state(owner.id).await, PublicState::Active);
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn an_earlier_caller_waits_for_its_own_time(world: World) {
    let id = with_deadline(&world, 5_000).await;
    let before = world.now();
    world.advance(5_000);
    world.backend.expire_execution(id, ExpirePhase::ExecutionDeadline, before).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Waiting);
    expire(&world, id, ExpirePhase::ExecutionDeadline).await;
    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn a_deadline_ends_an_execution_from_any_state(world: World) {
    let after = LEASE_MS + 10_000;
    let waiting = with_deadline(&world, after).await;
    let deadline = Some(world.now().plus(after));
    let delay = Some(world.now().plus(after * 2));
    let delayed = CreateExecutionArgs { delay_until: delay, execution_deadline_at: deadline, ..world.submission() };
    let delayed = world.submit(delayed).await;
    let mut ids = vec![waiting, delayed];
    for _ in 0..3 {
        ids.push(with_deadline(&world, after).await);
    }
    let parked = take_as(&world, ids[2], 0, "worker-a").await;
    act(&world, Act::Delay, Form::Handle, &parked).await.unwrap();
    let revoked = take_as(&world, ids[3], 0, "worker-a").await;
    revoke(&world, &revoked).await;
    let expired = take_as(&world, ids[4], 0, "worker-a").await;
    run_out(&world, &expired);
    world.run_due().await;
    let held = with_deadline(&world, 10_000).await;
    take_as(&world, held, 0, "worker-a").await;
    ids.push(held);

    world.pass(10_000).await;

    for id in ids {
        let info = info(&world, id).await;
        assert_eq!(info.public_state, PublicState::Expired);
        assert_eq!(info.state_vector.ownership_state, OwnershipState::Unowned);
        assert_eq!(field(&world, id, "failure_reason").await.as_deref(), Some("execution_deadline"));
    }
    assert!(world.claim().await.is_none());
}

async fn a_deadline_is_final_whatever_the_retry_policy_says(world: World) {
    let deadline = Some(world.now().plus(5_000));
    let policy = Some(ff_core::policy::PolicyDocument::from(&retrying(3)));
    let args = CreateExecutionArgs { execution_deadline_at: deadline, policy, ..world.submission() };
    let id = world.submit(args).await;
    take_as(&world, id, 0, "worker-a").await;
    world.pass(5_000).await;
    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn a_deadline_in_the_past_is_accepted_and_fires(world: World) {
    let deadline = Some(TimestampMs(world.now().0 - 1));
    let id = world.submit(CreateExecutionArgs { execution_deadline_at: deadline, ..world.submission() }).await;
    world.pass(0).await;
    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn a_deadline_of_a_finished_execution_does_nothing(world: World) {
    let id = with_deadline(&world, 5_000).await;
    let owner = take_as(&world, id, 0, "worker-a").await;
    complete(&world, Form::Handle, &owner, None).await.unwrap();
    world.pass(60_000).await;
    expire(&world, id, ExpirePhase::ExecutionDeadline).await;
    assert_eq!(world.state(id).await, PublicState::Completed);
}

async fn a_timer_of_a_missing_execution_does_nothing(world: World) {
    for phase in ExpirePhase::ALL.iter().copied() {
        expire(&world, world.execution_id(), phase).await;
        let id: ExecutionId = format!("{{fp:65535}}:{}", world.uuid()).parse().unwrap();
        let answer = world.backend.expire_execution(id, phase, world.now()).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
}

fn released(owner: &Owner, reason: ReleaseReason) -> (ExecutionId, LeaseChange) {
    let change = LeaseChange::Released { lease_id: owner.lease_id(), lease_epoch: owner.epoch(), reason };
    (owner.id, change)
}

async fn a_timer_tells_its_watchers_once(world: World) {
    let retried = own_with(&world, &timed(5_000, retrying(1))).await;
    let ended = own_with(&world, &timed(6_000, retrying(0))).await;
    let id = with_deadline(&world, 7_000).await;
    let late = take_as(&world, id, 0, "worker-a").await;
    let watched = watch(&world).await;

    for _ in 0..3 {
        world.pass(1).await;
        world.advance(4_999);
        expire(&world, retried.id, ExpirePhase::AttemptTimeout).await;
        expire(&world, ended.id, ExpirePhase::AttemptTimeout).await;
        expire(&world, id, ExpirePhase::ExecutionDeadline).await;
    }

    let seen = watched.seen(&world).await;
    let ends = [(ended.id, CompletionOutcome::Expired), (id, CompletionOutcome::Expired)];
    assert_eq!(seen.ends, ends);
    let leases = [
        released(&retried, ReleaseReason::ExpiredAttemptTimeout),
        released(&ended, ReleaseReason::ExpiredAttemptTimeout),
        released(&late, ReleaseReason::ExpiredExecutionDeadline),
    ];
    assert_eq!(seen.leases, leases);
}

async fn a_timer_closes_the_stream(world: World) {
    let retried = own_with(&world, &timed(5_000, retrying(1))).await;
    let ended = own_with(&world, &timed(5_000, retrying(0))).await;
    let id = with_deadline(&world, 5_000).await;
    take_as(&world, id, 0, "worker-a").await;
    world.pass(5_000).await;
    for id in [retried.id, ended.id, id] {
        assert_eq!(closed(&world, id, 0).await, Some(StreamCloseReason::Expired));
    }
}

async fn an_expired_execution_refuses_its_owner(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(0))).await;
    world.pass(5_000).await;
    for form in [Form::Handle, Form::Fence] {
        let detail = not_active(complete(&world, form, &owner, None).await);
        assert_eq!(detail.terminal_outcome, TerminalOutcome::Expired);
        not_active(fail(&world, form, &owner, FailureClass::Timeout).await);
    }
}

async fn a_lost_reply_to_a_failure_after_a_timeout_gets_the_retry(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(1))).await;
    world.pass(5_000).await;
    let delay_until = world.now().plus(1_000);
    let outcome = fail(&world, Form::Handle, &owner, FailureClass::Timeout).await.unwrap();
    assert_eq!(outcome, FailOutcome::RetryScheduled { delay_until });
}

async fn an_unreadable_policy_ends_an_attempt_that_ran_too_long(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(3))).await;
    world.damage(Damage::Definition(owner.id)).await;
    world.pass(5_000).await;
    assert_eq!(world.state(owner.id).await, PublicState::Expired);
}

async fn a_timer_of_an_unreadable_execution_is_reported_as_corruption(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(3))).await;
    world.damage(Damage::Execution(owner.id)).await;
    for phase in ExpirePhase::ALL.iter().copied() {
        let answer = world.backend.expire_execution(owner.id, phase, world.now()).await;
        invalid(answer, ValidationKind::Corruption);
    }
}
