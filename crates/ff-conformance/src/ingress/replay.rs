//! Opening a terminal execution again.

use std::time::Duration;

use ff_core::backend::attempts::FailureReason;
use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs, ReplayExecutionResult};
use ff_core::backend::subscriptions::{LeaseChange, ReplayType, ScannerFilter};
use ff_core::cursor::EventCursor;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::policy::{BackoffStrategy, ExecutionPolicy, RetryPolicy};
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;
use ff_core::state::{AttemptState, EligibilityState, PublicState, TerminalOutcome};
use ff_core::{Blob, Result};
use futures_util::StreamExt;

use crate::cases;
use crate::expect::{invalid, not_found, state};
use crate::world::World;

cases!["ingress":
    a_completed_execution_can_be_replayed,
    a_failed_execution_can_be_replayed,
    a_cancelled_execution_can_be_replayed,
    a_replay_makes_a_new_attempt,
    a_replay_stands_in_the_history,
    a_replay_clears_result_and_completion,
    a_replay_starts_retries_over,
    a_replay_drops_a_deadline_that_has_passed,
    a_replay_keeps_a_deadline_that_lies_ahead,
    a_second_replay_finds_it_not_terminal,
    replays_are_counted,
    a_missing_execution_is_not_replayed,
    the_reason_of_a_replay_is_a_free_string,
];

fn args(execution_id: ExecutionId) -> ReplayExecutionArgs {
    ReplayExecutionArgs { execution_id, reason: "again".to_owned(), requested_by: "ada".to_owned() }
}

async fn replay(world: &World, id: ExecutionId) -> Result<ReplayExecutionResult> {
    world.backend.replay_execution(args(id)).await
}

async fn completed(world: &World) -> ExecutionId {
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, Some(Blob::from("done"))).await.unwrap();
    id
}

const REPLAYED: ReplayExecutionResult = ReplayExecutionResult::Replayed { public_state: PublicState::Waiting };

async fn a_completed_execution_can_be_replayed(world: World) {
    let id = completed(&world).await;

    assert_eq!(replay(&world, id).await.unwrap(), REPLAYED);

    let state = world.backend.read_execution_info(id).await.unwrap().unwrap().state_vector;
    assert_eq!(state.eligibility_state, EligibilityState::EligibleNow);
    assert_eq!(state.attempt_state, AttemptState::PendingReplayAttempt);
    assert_eq!(state.terminal_outcome, TerminalOutcome::None);
}

async fn a_replay_stands_in_the_history(world: World) {
    let id = completed(&world).await;
    let filter = ScannerFilter::default();
    let mut history = world.backend.subscribe_lease_history(EventCursor::TAIL, &filter).await.unwrap();

    replay(&world, id).await.unwrap();

    let next = tokio::time::timeout(Duration::from_secs(10), history.next()).await.expect("an event");
    let event = next.unwrap().unwrap();
    assert_eq!(event.execution_id, id);
    assert_eq!(event.change, LeaseChange::ReplayInitiated { replay_type: ReplayType::Normal });
}

async fn a_failed_execution_can_be_replayed(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.fail(&handle, FailureReason::new("boom"), FailureClass::Permanent).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Failed);
    assert_eq!(replay(&world, id).await.unwrap(), REPLAYED);
}

async fn a_cancelled_execution_can_be_replayed(world: World) {
    let id = world.create().await;
    let cancel = ff_core::backend::attempts::CancelExecutionArgs {
        execution_id: id,
        reason: "no longer".to_owned(),
        source: CancelSource::OperatorOverride,
        fence: ff_core::ids::FenceTriple::NONE,
    };
    world.backend.cancel_execution(cancel).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Cancelled);
    assert_eq!(replay(&world, id).await.unwrap(), REPLAYED);
    assert!(world.claim().await.is_some());
    assert_eq!(world.backend.read_current_attempt_index(id).await.unwrap(), AttemptIndex(0));
}

async fn a_replay_makes_a_new_attempt(world: World) {
    let id = completed(&world).await;
    let before = world.backend.describe_execution(id).await.unwrap().unwrap().current_attempt;
    replay(&world, id).await.unwrap();

    assert!(world.claim().await.is_some());

    assert_eq!(world.backend.read_total_attempt_count(id).await.unwrap(), 2);
    assert_eq!(world.backend.read_current_attempt_index(id).await.unwrap(), AttemptIndex(1));
    let after = world.backend.describe_execution(id).await.unwrap().unwrap();
    assert_ne!(after.current_attempt, before);
    assert_eq!(after.current_lease.unwrap().lease_epoch.0, 2);
}

async fn a_replay_clears_result_and_completion(world: World) {
    let id = completed(&world).await;
    assert!(world.backend.get_execution_result(id).await.unwrap().is_some());
    let started = world.backend.read_execution_info(id).await.unwrap().unwrap().started_at;
    world.advance(10);

    replay(&world, id).await.unwrap();

    assert_eq!(world.backend.get_execution_result(id).await.unwrap(), None);
    let info = world.backend.read_execution_info(id).await.unwrap().unwrap();
    assert_eq!(info.completed_at, None);
    assert_eq!(info.started_at, started);
}

async fn a_replay_starts_retries_over(world: World) {
    let retry =
        RetryPolicy { max_retries: 1, backoff: BackoffStrategy::Fixed { delay_ms: 0 }, ..RetryPolicy::default() };
    let policy = ExecutionPolicy { retry_policy: Some(retry), ..ExecutionPolicy::default() };
    let id = world.create_with(&policy).await;
    for _ in 0..2 {
        for expected in [PublicState::Delayed, PublicState::Failed] {
            world.run_due().await;
            let handle = world.claim().await.expect("claimable");
            world.backend.fail(&handle, FailureReason::new("boom"), FailureClass::Transient).await.unwrap();
            let found = world.state(id).await;
            assert!(found == expected || (expected == PublicState::Delayed && found == PublicState::Waiting));
        }
        replay(&world, id).await.unwrap();
    }
    assert_eq!(world.backend.read_total_attempt_count(id).await.unwrap(), 4);
}

async fn a_replay_drops_a_deadline_that_has_passed(world: World) {
    let args = CreateExecutionArgs { execution_deadline_at: Some(world.now().plus(100)), ..world.submission() };
    let id = world.submit(args).await;
    world.pass(100).await;
    assert_eq!(world.state(id).await, PublicState::Expired);
    replay(&world, id).await.unwrap();
    world.pass(1000).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn a_replay_keeps_a_deadline_that_lies_ahead(world: World) {
    let args = CreateExecutionArgs { execution_deadline_at: Some(world.now().plus(100)), ..world.submission() };
    let id = world.submit(args).await;
    let handle = world.claim().await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
    replay(&world, id).await.unwrap();
    world.pass(100).await;
    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn a_second_replay_finds_it_not_terminal(world: World) {
    let id = completed(&world).await;
    replay(&world, id).await.unwrap();
    state(replay(&world, id).await, StateKind::ExecutionNotTerminal);
    world.claim().await.unwrap();
    state(replay(&world, id).await, StateKind::ExecutionNotTerminal);
}

async fn replays_are_counted(world: World) {
    let policy = ExecutionPolicy { max_replay_count: 1, ..ExecutionPolicy::default() };
    let (id, handle) = world.claim_one_with(&policy).await;
    world.backend.complete(&handle, None).await.unwrap();
    replay(&world, id).await.unwrap();
    let handle = world.claim().await.unwrap();
    state(replay(&world, id).await, StateKind::ExecutionNotTerminal);
    world.backend.complete(&handle, None).await.unwrap();
    state(replay(&world, id).await, StateKind::MaxReplaysExhausted);
    assert_eq!(world.state(id).await, PublicState::Completed);
}

async fn a_missing_execution_is_not_replayed(world: World) {
    not_found(replay(&world, world.execution_id()).await, Entity::Execution);
    invalid(replay(&world, ExecutionId::new(999, world.uuid())).await, ValidationKind::InvalidInput);
}

async fn the_reason_of_a_replay_is_a_free_string(world: World) {
    let id = completed(&world).await;
    let long = ReplayExecutionArgs { reason: "r".repeat(257), ..args(id) };
    invalid(world.backend.replay_execution(long).await, ValidationKind::InvalidInput);
    let control = ReplayExecutionArgs { requested_by: "a\nb".to_owned(), ..args(id) };
    invalid(world.backend.replay_execution(control).await, ValidationKind::InvalidInput);
    assert_eq!(world.state(id).await, PublicState::Completed);
}
