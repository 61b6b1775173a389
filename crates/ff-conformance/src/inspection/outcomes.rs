//! Waiting for the end of an execution.

use std::pin::pin;
use std::time::Duration;

use ff_core::backend::attempts::FailureReason;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::inspection::ExecutionOutcome;
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::ExecutionId;
use ff_core::rules::retry::FailureClass;
use ff_core::rules::waiting::WAIT_MS_MAX;
use ff_core::state::PublicState;
use ff_core::{Blob, TimestampMs};
use futures_util::future::join;

use crate::attempts::owner::{Act, Form, act, own};
use crate::cases;
use crate::expect::{invalid, is_closing, not_found};
use crate::harness::Damage;
use crate::patience::{is_waiting, settle};
use crate::stage::replay;
use crate::world::World;

cases!["inspection":
    an_outcome_that_is_there_is_told_at_once,
    an_outcome_tells_why_an_execution_failed,
    an_outcome_tells_why_an_execution_was_cancelled,
    an_outcome_tells_that_an_execution_ran_out_of_time,
    an_outcome_that_nobody_waits_for_is_none_while_there_is_none,
    a_wait_for_an_outcome_ends_with_the_commit_that_brings_it,
    a_wait_for_an_outcome_gives_up_when_its_time_is_over,
    a_wait_for_an_outcome_is_told_that_the_engine_closes,
    an_outcome_of_an_earlier_life_is_none,
    the_outcome_of_a_missing_execution_is_not_found,
    a_wait_for_an_outcome_beyond_the_longest_is_refused,
    the_outcome_of_an_unreadable_execution_is_reported_as_corruption,
];

fn ended(public_state: PublicState, completed_at: TimestampMs) -> ExecutionOutcome {
    ExecutionOutcome {
        public_state,
        result: None,
        failure_reason: None,
        failure_category: None,
        cancellation_reason: None,
        completed_at,
    }
}

async fn outcome(world: &World, id: ExecutionId) -> Option<ExecutionOutcome> {
    world.backend.await_outcome(id, 1_000).await.unwrap()
}

async fn an_outcome_that_is_there_is_told_at_once(world: World) {
    let (id, handle) = world.claim_one().await;
    let result = Some(Blob::from(b"\x00\xff".to_vec()));
    world.backend.complete(&handle, result.clone()).await.unwrap();
    let expected = ExecutionOutcome { result, ..ended(PublicState::Completed, world.now()) };
    world.advance(5);
    assert_eq!(outcome(&world, id).await, Some(expected.clone()));
    assert_eq!(world.backend.await_outcome(id, 0).await.unwrap(), Some(expected));
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(outcome(&world, id).await, Some(ended(PublicState::Completed, world.now())));
}

async fn an_outcome_tells_why_an_execution_failed(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.fail(&handle, FailureReason::new("no such host"), FailureClass::Permanent).await.unwrap();
    let told = outcome(&world, id).await.unwrap();
    assert_eq!(told.public_state, PublicState::Failed);
    assert_eq!(told.failure_reason.as_deref(), Some("no such host"));
    assert_eq!(told.failure_category.as_deref(), Some(FailureClass::Permanent.as_str()));
}

async fn an_outcome_tells_why_an_execution_was_cancelled(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.cancel(&handle, "not needed").await.unwrap();
    let cancellation_reason = Some("not needed".to_owned());
    let expected = ExecutionOutcome { cancellation_reason, ..ended(PublicState::Cancelled, world.now()) };
    assert_eq!(outcome(&world, id).await, Some(expected));
}

async fn an_outcome_tells_that_an_execution_ran_out_of_time(world: World) {
    let deadline = Some(world.now().plus(100));
    let id = world.submit(CreateExecutionArgs { execution_deadline_at: deadline, ..world.submission() }).await;
    let waiting = world.backend.await_outcome(id, 1_000);
    let timers = async {
        settle().await;
        world.pass(100).await;
    };
    let told = join(waiting, timers).await.0.unwrap().unwrap();
    assert_eq!(told.public_state, PublicState::Expired);
    assert_eq!(told.failure_reason.as_deref(), Some("execution_deadline"));
}

async fn an_outcome_that_nobody_waits_for_is_none_while_there_is_none(world: World) {
    let (id, _handle) = world.claim_one().await;
    assert_eq!(world.backend.await_outcome(id, 0).await.unwrap(), None);
}

async fn a_wait_for_an_outcome_ends_with_the_commit_that_brings_it(world: World) {
    let (id, handle) = world.claim_one().await;
    let waiting = world.backend.await_outcome(id, 1_000);
    let ending = async {
        settle().await;
        world.backend.progress(&handle, Some(50), None).await.unwrap();
        world.backend.complete(&handle, Some(Blob::from("done"))).await.unwrap();
    };
    let told = join(waiting, ending).await.0.unwrap().unwrap();
    assert_eq!((told.public_state, told.result), (PublicState::Completed, Some(Blob::from("done"))));
}

async fn a_wait_for_an_outcome_gives_up_when_its_time_is_over(world: World) {
    let (id, _handle) = world.claim_one().await;
    let mut waiting = pin!(world.backend.await_outcome(id, WAIT_MS_MAX));
    assert!(is_waiting(&mut waiting).await);
    world.advance(WAIT_MS_MAX - 1);
    settle().await;
    assert!(is_waiting(&mut waiting).await);
    world.advance(1);
    assert_eq!(waiting.await.unwrap(), None);
}

async fn a_wait_for_an_outcome_is_told_that_the_engine_closes(world: World) {
    let id = world.create().await;
    let waiting = world.backend.await_outcome(id, 1_000);
    let closing = async {
        settle().await;
        world.backend.shutdown_prepare(Duration::ZERO).await.unwrap();
    };
    is_closing(join(waiting, closing).await.0);
    is_closing(world.backend.await_outcome(id, 1_000).await);
    assert_eq!(world.backend.await_outcome(id, 0).await.unwrap(), None);
}

async fn an_outcome_of_an_earlier_life_is_none(world: World) {
    let owner = own(&world).await;
    act(&world, Act::Complete, Form::Handle, &owner).await.unwrap();
    replay(&world, owner.id).await;
    assert_eq!(world.backend.await_outcome(owner.id, 0).await.unwrap(), None);
}

async fn the_outcome_of_a_missing_execution_is_not_found(world: World) {
    for ms in [0, 1_000] {
        not_found(world.backend.await_outcome(world.execution_id(), ms).await, Entity::Execution);
    }
}

async fn a_wait_for_an_outcome_beyond_the_longest_is_refused(world: World) {
    let id = world.execution_id();
    invalid(world.backend.await_outcome(id, WAIT_MS_MAX + 1).await, ValidationKind::InvalidInput);
}

async fn the_outcome_of_an_unreadable_execution_is_reported_as_corruption(world: World) {
    let id = world.create().await;
    world.damage(Damage::Execution(id)).await;
    invalid(world.backend.await_outcome(id, 1_000).await, ValidationKind::Corruption);
}
