//! What a suspend does, and what its repetition answers.

use ff_core::backend::subscriptions::{LeaseChange, ReleaseReason, ScannerFilter};
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger, SuspendOutcome, SuspensionReasonCode};
use ff_core::cursor::EventCursor;
use ff_core::error::StateKind;
use ff_core::handle::HandleKind;
use ff_core::policy::{ExecutionPolicy, SuspensionPolicy, TimeoutBehavior, TimeoutPolicy};
use ff_core::state::{AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState};
use futures_util::StreamExt;

use super::fixtures::*;
use crate::expect::{contention, state};
use crate::{World, cases};

cases!["suspension":
    a_suspend_releases_the_lease_and_parks_the_attempt,
    a_suspend_tells_where_signals_may_be_sent,
    a_suspended_attempt_goes_on_with_its_own_index_and_id,
    a_suspended_handle_bears_no_lease,
    the_reason_of_a_suspension_explains_the_execution,
    a_suspend_is_told_as_a_release_in_order,
    a_repeated_suspend_without_a_key_finds_the_execution_inactive,
    a_repeated_suspend_with_its_key_gets_the_first_answer_whatever_happened_since,
    a_suspend_key_belongs_to_its_execution,
    an_empty_suspend_key_is_none,
    a_suspend_is_forgotten_a_minute_after_its_timeout,
    a_suspend_without_a_timeout_is_remembered_for_seven_days,
    the_policy_gives_timeout_and_behaviour_together,
    a_suspend_that_names_a_timeout_ignores_the_policy,
    the_time_an_attempt_has_left_survives_a_suspension,
    suspending_by_triple_does_the_same,
];

async fn a_suspend_releases_the_lease_and_parks_the_attempt(world: World) {
    let (id, handle) = held(&world).await;
    let before = snapshot(&world, id).await;

    let parked = park_with(&world, id, handle, ask(&world)).await;

    let vector = info(&world, id).await.state_vector;
    assert_eq!(vector.lifecycle_phase, LifecyclePhase::Suspended);
    assert_eq!(vector.ownership_state, OwnershipState::Unowned);
    assert_eq!(vector.eligibility_state, EligibilityState::NotApplicable);
    assert_eq!(vector.blocking_reason, BlockingReason::WaitingForSignal);
    assert_eq!(vector.attempt_state, AttemptState::AttemptInterrupted);
    let after = snapshot(&world, id).await;
    assert_eq!(after.public_state, PublicState::Suspended);
    assert_eq!(after.current_lease, None);
    assert_eq!(after.current_attempt, before.current_attempt);
    assert_eq!(after.current_waitpoint, Some(parked.details.waitpoint_id));
    assert_eq!(world.claim().await, None, "nobody can claim it");
}

async fn a_suspend_tells_where_signals_may_be_sent(world: World) {
    let args = asking(&world, vec![fresh(&world, "a"), fresh(&world, "b")], all([any("a"), any("b")]));
    let parked = parked(&world, args.clone()).await;

    assert_eq!(parked.details.suspension_id, args.suspension_id);
    assert_eq!(parked.details.waitpoint_id, args.waitpoints[0].waitpoint_id());
    assert_eq!(parked.details.waitpoint_key, "a");
    let [other] = &parked.details.additional_waitpoints[..] else { panic!("{:?}", parked.details) };
    assert_eq!((other.waitpoint_id, other.waitpoint_key.as_str()), (args.waitpoints[1].waitpoint_id(), "b"));
    assert_ne!(other.waitpoint_token, parked.details.waitpoint_token);
    assert_eq!(other.waitpoint_token.kid(), "k1");
}

async fn a_suspended_attempt_goes_on_with_its_own_index_and_id(world: World) {
    let (id, handle) = held(&world).await;
    let before = snapshot(&world, id).await;
    let parked = park_with(&world, id, handle, ask(&world)).await;
    deliver(&world, parked.signal("go")).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);

    let resumed = world.claim_as("worker-b", 30_000).await.unwrap().expect("claimable again");

    assert_eq!(resumed.kind, HandleKind::Resumed);
    let after = snapshot(&world, id).await;
    assert_eq!(after.current_attempt, before.current_attempt);
    assert_eq!(after.total_attempt_count, 1);
    let epochs = [&before, &after].map(|seen| seen.current_lease.as_ref().unwrap().lease_epoch.0);
    assert_eq!(epochs, [1, 2]);
    assert_eq!(info(&world, id).await.state_vector.attempt_state, AttemptState::RunningAttempt);
}

async fn a_suspended_handle_bears_no_lease(world: World) {
    let mut first = ask(&world);
    first.idempotency_key = Some("once".into());
    let parked = parked(&world, first.clone()).await;
    assert_eq!(parked.handle.kind, HandleKind::Suspended);

    state(world.backend.suspend(&parked.handle, ask(&world)).await, StateKind::AlreadySuspended);
    state(world.backend.suspend(&parked.handle, first).await, StateKind::AlreadySuspended);
    let key = world.backend.create_waitpoint(&parked.handle, "b", std::time::Duration::from_secs(1)).await;
    contention(key, "execution_not_active");
    contention(world.backend.renew(&parked.handle).await, "execution_not_active");
    contention(world.backend.complete(&parked.handle, None).await, "execution_not_active");
    assert!(observed(&world, &parked.handle).await.is_empty());
}

async fn the_reason_of_a_suspension_explains_the_execution(world: World) {
    seed(&world).await;
    for reason in SuspensionReasonCode::ALL {
        let (id, handle) = world.claim_one().await;
        let mut args = ask(&world);
        args.reason_code = *reason;
        park_with(&world, id, handle, args).await;
        assert_eq!(info(&world, id).await.state_vector.blocking_reason, reason.blocking_reason(), "{reason}");
    }
    let mapped = [
        (SuspensionReasonCode::StepBoundary, BlockingReason::WaitingForSignal),
        (SuspensionReasonCode::ManualPause, BlockingReason::PausedByOperator),
        (SuspensionReasonCode::WaitingForOperatorReview, BlockingReason::PausedByOperator),
        (SuspensionReasonCode::PausedByBudget, BlockingReason::WaitingForBudget),
    ];
    for (reason, blocking) in mapped {
        assert_eq!(reason.blocking_reason(), blocking);
    }
}

async fn a_suspend_is_told_as_a_release_in_order(world: World) {
    let (id, handle) = held(&world).await;
    let filter = ScannerFilter::default();
    let mut feed = world.backend.subscribe_lease_history(EventCursor::TAIL, &filter).await.unwrap();
    let lease = snapshot(&world, id).await.current_lease.unwrap();

    park_with(&world, id, handle, ask(&world)).await;

    let event = feed.next().await.unwrap().unwrap();
    let (lease_id, lease_epoch) = (lease.lease_id, lease.lease_epoch);
    assert_eq!(event.change, LeaseChange::Released { lease_id, lease_epoch, reason: ReleaseReason::Suspend });
}

async fn a_repeated_suspend_without_a_key_finds_the_execution_inactive(world: World) {
    let args = ask(&world);
    let parked = parked(&world, args.clone()).await;
    contention(world.backend.suspend(&parked.old, args).await, "execution_not_active");
}

async fn a_repeated_suspend_with_its_key_gets_the_first_answer_whatever_happened_since(world: World) {
    let (id, handle) = held(&world).await;
    let fence = fence_of(&world, id).await;
    let mut args = ask(&world);
    args.idempotency_key = Some("once".into());
    let first = world.backend.suspend(&handle, args.clone()).await.unwrap();
    assert_eq!(world.backend.suspend(&handle, args.clone()).await.unwrap(), first);

    world.backend.resume_execution(ResumeExecutionArgs::new(id, ResumeTrigger::Operator)).await.unwrap();
    let next = world.claim().await.expect("resumed");
    assert_eq!(world.backend.suspend(&next, args.clone()).await.unwrap(), first, "no state is looked at");
    assert_eq!(world.backend.suspend_by_triple(id, fence, args).await.unwrap(), first);
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn a_suspend_key_belongs_to_its_execution(world: World) {
    seed(&world).await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        let (id, handle) = world.claim_one().await;
        let mut args = ask(&world);
        args.idempotency_key = Some("once".into());
        answers.push(park_with(&world, id, handle, args).await.details);
    }
    assert_ne!(answers[0].suspension_id, answers[1].suspension_id);
}

async fn an_empty_suspend_key_is_none(world: World) {
    let mut args = ask(&world);
    args.idempotency_key = Some(String::new());
    let parked = parked(&world, args.clone()).await;
    contention(world.backend.suspend(&parked.old, args).await, "execution_not_active");
}

async fn a_suspend_is_forgotten_a_minute_after_its_timeout(world: World) {
    let mut args = ask(&world);
    args.idempotency_key = Some("once".into());
    args.timeout_at = Some(world.now().plus(10_000));
    args.timeout_behavior = TimeoutBehavior::Escalate;
    let parked = parked(&world, args.clone()).await;
    world.pass(10_000 + 59_999).await;
    assert!(world.backend.suspend(&parked.old, args.clone()).await.is_ok());
    world.pass(1).await;
    contention(world.backend.suspend(&parked.old, args).await, "execution_not_active");
}

async fn a_suspend_without_a_timeout_is_remembered_for_seven_days(world: World) {
    let mut args = ask(&world);
    args.idempotency_key = Some("once".into());
    let parked = parked(&world, args.clone()).await;
    world.pass(7 * 24 * 60 * 60 * 1000 - 1).await;
    assert!(world.backend.suspend(&parked.old, args.clone()).await.is_ok());
    world.pass(1).await;
    contention(world.backend.suspend(&parked.old, args).await, "execution_not_active");
}

fn policy(default_timeout_ms: Option<u64>, timeout_behavior: TimeoutBehavior) -> ExecutionPolicy {
    ExecutionPolicy {
        suspension_policy: Some(SuspensionPolicy { default_timeout_ms, timeout_behavior }),
        ..ExecutionPolicy::default()
    }
}

async fn the_policy_gives_timeout_and_behaviour_together(world: World) {
    seed(&world).await;
    let (id, handle) = world.claim_one_with(&policy(Some(5000), TimeoutBehavior::Cancel)).await;
    park_with(&world, id, handle, ask(&world)).await;
    world.pass(4999).await;
    assert_eq!(world.state(id).await, PublicState::Suspended);
    world.pass(1).await;
    assert_eq!(world.state(id).await, PublicState::Cancelled);
}

async fn a_suspend_that_names_a_timeout_ignores_the_policy(world: World) {
    seed(&world).await;
    let (id, handle) = world.claim_one_with(&policy(Some(5000), TimeoutBehavior::Cancel)).await;
    let mut args = ask(&world);
    args.timeout_at = Some(world.now().plus(6000));
    park_with(&world, id, handle, args).await;
    world.pass(5999).await;
    assert_eq!(world.state(id).await, PublicState::Suspended);
    world.pass(1).await;
    assert_eq!(world.state(id).await, PublicState::Failed);
}

async fn the_time_an_attempt_has_left_survives_a_suspension(world: World) {
    seed(&world).await;
    let policy = ExecutionPolicy {
        timeout_policy: Some(TimeoutPolicy { attempt_timeout_ms: Some(10_000), execution_deadline_ms: None }),
        ..ExecutionPolicy::default()
    };
    let (id, handle) = world.claim_one_with(&policy).await;
    world.pass(4000).await;
    let parked = park_with(&world, id, handle, ask(&world)).await;
    world.pass(60_000).await;
    assert_eq!(world.state(id).await, PublicState::Suspended, "a suspended attempt does not run");
    deliver(&world, parked.signal("go")).await;
    world.claim().await.expect("resumed");
    world.pass(5999).await;
    assert_eq!(world.state(id).await, PublicState::Active);
    world.pass(1).await;
    assert_ne!(world.state(id).await, PublicState::Active);
}

async fn suspending_by_triple_does_the_same(world: World) {
    let (id, old) = held(&world).await;
    let fence = fence_of(&world, id).await;
    let SuspendOutcome::Suspended { details, handle } =
        world.backend.suspend_by_triple(id, fence, ask(&world)).await.unwrap()
    else {
        panic!("expected a suspension")
    };
    assert_eq!(handle.kind, HandleKind::Suspended);
    assert_eq!(world.state(id).await, PublicState::Suspended);
    let parked = Parked { id, details, handle, old };
    deliver(&world, parked.signal("go")).await;
    world.claim().await.expect("resumed");
    assert_eq!(observed(&world, &parked.handle).await, ["go"]);
}
