//! What happens when a suspension has waited too long.

use ff_core::backend::subscriptions::{CompletionOutcome, ScannerFilter};
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger, SuspendArgs};
use ff_core::cursor::EventCursor;
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::ExecutionId;
use ff_core::policy::TimeoutBehavior;
use ff_core::state::{AttemptState, BlockingReason, PublicState};
use futures_util::StreamExt;

use super::fixtures::*;
use crate::expect::{invalid, state};
use crate::{Damage, World, cases};

cases!["suspension":
    a_damaged_execution_does_not_keep_others_from_timing_out,
    a_timeout_fails_a_suspension_by_default,
    a_timeout_may_cancel,
    a_timeout_may_expire,
    a_timeout_may_resume_and_tells_so_by_a_signal,
    a_timeout_may_hand_the_execution_to_a_person,
    a_timeout_that_ends_an_execution_closes_its_waitpoints,
    a_timeout_that_ends_an_execution_is_told_once,
    a_timeout_is_applied_only_when_it_is_due,
    the_time_of_the_caller_does_not_make_a_timeout_due,
    a_timeout_in_the_near_past_strikes_at_once,
    a_resumed_execution_is_not_timed_out,
    a_timeout_of_a_damaged_execution_is_corruption,
    signals_that_counted_are_shown_beside_the_timeout,
];

const TIMEOUT_MS: u64 = 5000;

fn until(world: &World, behavior: TimeoutBehavior) -> SuspendArgs {
    let timeout_at = Some(world.now().plus(TIMEOUT_MS));
    SuspendArgs { timeout_at, timeout_behavior: behavior, ..ask(world) }
}

async fn ended(world: &World, behavior: TimeoutBehavior) -> (Parked, PublicState) {
    let parked = parked(world, until(world, behavior)).await;
    world.pass(TIMEOUT_MS).await;
    let state = world.state(parked.id).await;
    (parked, state)
}

async fn a_timeout_fails_a_suspension_by_default(world: World) {
    let (parked, state) = ended(&world, TimeoutBehavior::default()).await;
    assert_eq!(state, PublicState::Failed);
    let seen = info(&world, parked.id).await;
    assert_eq!(seen.state_vector.attempt_state, AttemptState::AttemptTerminal);
    assert_eq!(seen.completed_at, Some(world.now()));
    let fields = world.backend.read_exec_core_fields(parked.id, &["failure_reason"]).await.unwrap();
    assert_eq!(fields["failure_reason"].as_deref(), Some("suspension_timeout:fail"));
    assert_eq!(world.claim().await, None, "nothing is retried");
}

async fn a_timeout_may_cancel(world: World) {
    assert_eq!(ended(&world, TimeoutBehavior::Cancel).await.1, PublicState::Cancelled);
}

async fn a_timeout_may_expire(world: World) {
    assert_eq!(ended(&world, TimeoutBehavior::Expire).await.1, PublicState::Expired);
}

async fn a_timeout_may_resume_and_tells_so_by_a_signal(world: World) {
    let (parked, after) = ended(&world, TimeoutBehavior::AutoResumeWithTimeoutSignal).await;
    assert_eq!(after, PublicState::Waiting);
    assert_eq!(info(&world, parked.id).await.state_vector.attempt_state, AttemptState::AttemptInterrupted);
    state(world.backend.deliver_signal(parked.signal("go")).await, StateKind::WaitpointClosed);
    let handle = world.claim().await.expect("claimable");
    let seen = world.backend.observe_signals(&handle).await.unwrap();
    let [signal] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((signal.signal_name.as_str(), signal.source_type.as_str()), ("timeout", "suspension_timeout"));
    assert_eq!(signal.waitpoint_id, parked.details.waitpoint_id);
    assert_eq!(signal.accepted_at, world.now());
}

async fn a_timeout_may_hand_the_execution_to_a_person(world: World) {
    let (parked, after) = ended(&world, TimeoutBehavior::Escalate).await;
    assert_eq!(after, PublicState::Suspended);
    assert_eq!(info(&world, parked.id).await.state_vector.blocking_reason, BlockingReason::PausedByOperator);
    let partition = parked.id.partition().into();
    let page = world.backend.list_suspended(&partition, None, 10).await.unwrap();
    let [entry] = &page.entries[..] else { panic!("{page:?}") };
    assert_eq!((entry.timeout_at, entry.reason.as_str()), (None, "waiting_for_operator_review"));
    world.pass(1_000_000).await;
    assert_eq!(world.state(parked.id).await, PublicState::Suspended, "no timeout is left");
    world.backend.resume_execution(ResumeExecutionArgs::new(parked.id, ResumeTrigger::Operator)).await.unwrap();
    assert_eq!(world.state(parked.id).await, PublicState::Waiting);
}

async fn a_timeout_that_ends_an_execution_closes_its_waitpoints(world: World) {
    for behavior in [TimeoutBehavior::Fail, TimeoutBehavior::Cancel, TimeoutBehavior::Expire] {
        let (parked, _) = ended(&world, behavior).await;
        let listed = ff_core::backend::signals::ListPendingWaitpointsArgs::new(parked.id);
        assert_eq!(world.backend.list_pending_waitpoints(listed).await.unwrap().entries, []);
        state(world.backend.deliver_signal(parked.signal("go")).await, StateKind::TargetNotSignalable);
        let resume = ResumeExecutionArgs::new(parked.id, ResumeTrigger::Operator);
        state(world.backend.resume_execution(resume).await, StateKind::ExecutionNotSuspended);
    }
}

async fn a_timeout_that_ends_an_execution_is_told_once(world: World) {
    let filter = ScannerFilter::default();
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &filter).await.unwrap();
    let (parked, _) = ended(&world, TimeoutBehavior::Expire).await;
    world.backend.expire_suspension(parked.id, world.now()).await.unwrap();
    let (other, _) = ended(&world, TimeoutBehavior::Cancel).await;
    let told = [feed.next().await.unwrap().unwrap(), feed.next().await.unwrap().unwrap()];
    let told = told.map(|event| (event.execution_id, event.outcome));
    assert_eq!(told, [(parked.id, CompletionOutcome::Expired), (other.id, CompletionOutcome::Cancelled)]);
}

async fn a_timeout_is_applied_only_when_it_is_due(world: World) {
    let parked = parked(&world, until(&world, TimeoutBehavior::Fail)).await;
    world.backend.expire_suspension(world.execution_id(), world.now()).await.unwrap();
    world.advance(TIMEOUT_MS - 1);
    world.backend.expire_suspension(parked.id, world.now()).await.unwrap();
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
    world.advance(1);
    world.backend.expire_suspension(parked.id, world.now()).await.unwrap();
    assert_eq!(world.state(parked.id).await, PublicState::Failed);
    world.backend.expire_suspension(parked.id, world.now()).await.unwrap();
    let nowhere = ExecutionId::new(u16::MAX, world.uuid());
    invalid(world.backend.expire_suspension(nowhere, world.now()).await, ValidationKind::InvalidInput);
}

async fn the_time_of_the_caller_does_not_make_a_timeout_due(world: World) {
    let parked = parked(&world, until(&world, TimeoutBehavior::Fail)).await;
    world.backend.expire_suspension(parked.id, world.now().plus(TIMEOUT_MS)).await.unwrap();
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
    let before = world.now();
    world.advance(TIMEOUT_MS);
    world.backend.expire_suspension(parked.id, before).await.unwrap();
    assert_eq!(world.state(parked.id).await, PublicState::Suspended, "the earlier of both times counts");
}

async fn a_timeout_in_the_near_past_strikes_at_once(world: World) {
    let timeout_at = Some(ff_core::TimestampMs(world.now().0 - 1));
    let parked = parked(&world, SuspendArgs { timeout_at, ..ask(&world) }).await;
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
    world.run_due().await;
    assert_eq!(world.state(parked.id).await, PublicState::Failed);
}

async fn a_resumed_execution_is_not_timed_out(world: World) {
    let parked = parked(&world, until(&world, TimeoutBehavior::Fail)).await;
    deliver(&world, parked.signal("go")).await;
    world.pass(TIMEOUT_MS).await;
    assert_eq!(world.state(parked.id).await, PublicState::Waiting);
}

async fn a_timeout_of_a_damaged_execution_is_corruption(world: World) {
    let parked = parked(&world, until(&world, TimeoutBehavior::Fail)).await;
    world.advance(TIMEOUT_MS);
    world.damage(Damage::Waitpoint(parked.id, parked.details.waitpoint_id)).await;
    invalid(world.backend.expire_suspension(parked.id, world.now()).await, ValidationKind::Corruption);
    assert_eq!(world.state(parked.id).await, PublicState::Suspended, "nothing happens by halves");
}

async fn signals_that_counted_are_shown_beside_the_timeout(world: World) {
    let mut args = until(&world, TimeoutBehavior::AutoResumeWithTimeoutSignal);
    args.waitpoints = vec![fresh(&world, "a"), fresh(&world, "b")];
    args.resume_condition = all([single("a", "one"), single("b", "two")]);
    let parked = parked(&world, args).await;
    deliver(&world, parked.signal_at("a", "one")).await;
    world.pass(TIMEOUT_MS).await;
    assert_eq!(observed(&world, &parked.handle).await, ["one", "timeout"]);
}

async fn a_damaged_execution_does_not_keep_others_from_timing_out(world: World) {
    let timeout_at = Some(world.now().plus(1000));
    let first = parked(&world, SuspendArgs { timeout_at, ..ask(&world) }).await;
    let second = parked(&world, SuspendArgs { timeout_at, ..ask(&world) }).await;
    world.damage(Damage::Execution(first.id)).await;
    world.pass(1000).await;
    assert_eq!(world.state(second.id).await, PublicState::Failed);
}
