//! Going on regardless of the condition, and learning why one goes on.

use ff_core::Blob;
use ff_core::backend::signals::{ListPendingWaitpointsArgs, SignalEffect};
use ff_core::backend::suspension::{CountKind, ResumeExecutionArgs, ResumeExecutionResult, ResumeTrigger};
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::ExecutionId;
use ff_core::state::{AttemptState, BlockingReason, PublicState};

use super::fixtures::*;
use crate::expect::{invalid, not_found, state};
use crate::world::LEASE_MS;
use crate::{Damage, World, cases};

cases!["suspension":
    an_operator_resumes_regardless_of_the_condition,
    a_resume_may_be_delayed,
    a_resume_closes_every_waitpoint,
    a_resume_needs_a_suspension,
    a_resume_with_an_unknown_trigger_is_refused_first,
    a_resume_of_a_damaged_execution_is_corruption,
    an_old_token_never_resumes_a_later_suspension,
    every_part_of_a_signal_reaches_the_resumed_worker,
    only_signals_that_counted_explain_a_resume,
    a_resume_is_explained_to_its_own_attempt_only,
    the_latest_resume_of_an_attempt_is_explained,
    an_attempt_that_never_resumed_has_nothing_to_explain,
    the_explanation_of_a_damaged_waitpoint_is_corruption,
];

fn by(id: ExecutionId, trigger: ResumeTrigger) -> ResumeExecutionArgs {
    ResumeExecutionArgs::new(id, trigger)
}

async fn an_operator_resumes_regardless_of_the_condition(world: World) {
    seed(&world).await;
    for trigger in ResumeTrigger::ALL {
        let (id, handle) = world.claim_one().await;
        park_with(&world, id, handle, ask(&world)).await;
        let resumed = world.backend.resume_execution(by(id, *trigger)).await.unwrap();
        assert_eq!(resumed, ResumeExecutionResult::Resumed { public_state: PublicState::Waiting });
        let seen = info(&world, id).await.state_vector;
        assert_eq!(seen.attempt_state, AttemptState::AttemptInterrupted);
        assert_eq!(snapshot(&world, id).await.current_waitpoint, None);
        let handle = world.claim().await.expect("claimable");
        assert!(observed(&world, &handle).await.is_empty(), "no signal explains it");
        world.backend.complete(&handle, None).await.unwrap();
    }
}

async fn a_resume_may_be_delayed(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let args = ResumeExecutionArgs { resume_delay_ms: 5000, ..by(parked.id, ResumeTrigger::Operator) };
    let resumed = world.backend.resume_execution(args).await.unwrap();
    assert_eq!(resumed, ResumeExecutionResult::Resumed { public_state: PublicState::Delayed });
    assert_eq!(info(&world, parked.id).await.state_vector.blocking_reason, BlockingReason::WaitingForResumeDelay);
    world.pass(4999).await;
    assert_eq!(world.claim().await, None);
    world.pass(1).await;
    assert_eq!(world.state(parked.id).await, PublicState::Waiting);
    world.claim().await.expect("the delay is over");
}

async fn a_resume_closes_every_waitpoint(world: World) {
    let parked = parked_on(&world, &["a", "b"], all([any("a"), any("b")])).await;
    deliver(&world, parked.signal_at("a", "x")).await;
    world.backend.resume_execution(by(parked.id, ResumeTrigger::Operator)).await.unwrap();
    let listed = world.backend.list_pending_waitpoints(ListPendingWaitpointsArgs::new(parked.id)).await.unwrap();
    assert_eq!(listed.entries, []);
    for key in ["a", "b"] {
        state(world.backend.deliver_signal(parked.signal_at(key, "x")).await, StateKind::WaitpointClosed);
    }
}

async fn a_resume_needs_a_suspension(world: World) {
    not_found(
        world.backend.resume_execution(by(world.execution_id(), ResumeTrigger::Operator)).await,
        Entity::Execution,
    );
    let (id, handle) = held(&world).await;
    let resume = async || world.backend.resume_execution(by(id, ResumeTrigger::Operator)).await;
    state(resume().await, StateKind::ExecutionNotSuspended);
    park_with(&world, id, handle, ask(&world)).await;
    resume().await.unwrap();
    state(resume().await, StateKind::ExecutionNotSuspended);
    let handle = world.claim().await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
    state(resume().await, StateKind::ExecutionNotSuspended);
}

async fn a_resume_with_an_unknown_trigger_is_refused_first(world: World) {
    let missing = by(world.execution_id(), ResumeTrigger::Operator);
    let magic = ResumeExecutionArgs { trigger_type: "magic".into(), ..missing.clone() };
    invalid(world.backend.resume_execution(magic).await, ValidationKind::InvalidInput);
    let endless = ResumeExecutionArgs { resume_delay_ms: u64::MAX, ..missing };
    invalid(world.backend.resume_execution(endless).await, ValidationKind::InvalidInput);
    let nowhere = by(ExecutionId::new(u16::MAX, world.uuid()), ResumeTrigger::Operator);
    invalid(world.backend.resume_execution(nowhere).await, ValidationKind::InvalidInput);
}

async fn a_resume_of_a_damaged_execution_is_corruption(world: World) {
    let parked = parked(&world, ask(&world)).await;
    world.damage(Damage::Waitpoint(parked.id, parked.details.waitpoint_id)).await;
    let resume = async || world.backend.resume_execution(by(parked.id, ResumeTrigger::Operator)).await;
    invalid(resume().await, ValidationKind::Corruption);
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
    world.damage(Damage::Execution(parked.id)).await;
    invalid(resume().await, ValidationKind::Corruption);
}

async fn an_old_token_never_resumes_a_later_suspension(world: World) {
    let first = parked(&world, ask(&world)).await;
    world.backend.resume_execution(by(first.id, ResumeTrigger::Operator)).await.unwrap();
    let handle = world.claim().await.expect("resumed");
    let second = park_with(&world, first.id, handle, ask(&world)).await;

    state(world.backend.deliver_signal(first.signal("go")).await, StateKind::WaitpointClosed);
    let mut mixed = second.signal("go");
    mixed.waitpoint_token = first.details.waitpoint_token.clone();
    invalid(world.backend.deliver_signal(mixed).await, ValidationKind::InvalidToken);

    assert_eq!(world.state(first.id).await, PublicState::Suspended);
    assert_eq!(deliver(&world, second.signal("go")).await, SignalEffect::ResumeConditionSatisfied);
}

async fn every_part_of_a_signal_reaches_the_resumed_worker(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let mut args = parked.signal("go");
    args.signal_category = "payments".into();
    args.source_type = "user".into();
    args.source_identity = "ann".into();
    args.correlation_id = Some("order-7".into());
    args.payload = Some(Blob::from(vec![0, 255, 10, 13]));
    args.payload_encoding = Some("raw".into());
    let at = world.now();
    let (signal_id, _) = delivered(&world, args).await;
    let handle = world.claim().await.expect("resumed");
    for handle in [&handle, &parked.handle, &parked.old] {
        let seen = world.backend.observe_signals(handle).await.unwrap();
        let [signal] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((signal.signal_id, signal.waitpoint_id), (signal_id, parked.details.waitpoint_id));
        assert_eq!((signal.waitpoint_key.as_str(), signal.signal_name.as_str()), ("a", "go"));
        assert_eq!(signal.signal_category, "payments");
        assert_eq!((signal.source_type.as_str(), signal.source_identity.as_str()), ("user", "ann"));
        assert_eq!((signal.correlation_id.as_str(), signal.accepted_at), ("order-7", at));
        assert_eq!(signal.payload.as_deref(), Some(&[0, 255, 10, 13][..]));
        assert_eq!(signal.payload_encoding.as_deref(), Some("raw"));
    }
}

async fn only_signals_that_counted_explain_a_resume(world: World) {
    let condition = all([single("a", "one"), count(2, CountKind::DistinctSources, &["b"])]);
    let parked = parked_on(&world, &["a", "b"], condition).await;
    for (key, name, source) in
        [("a", "noise", ""), ("b", "x", "ann"), ("b", "again", "ann"), ("a", "one", ""), ("b", "y", "bob")]
    {
        let mut args = parked.signal_at(key, name);
        args.source_identity = source.into();
        deliver(&world, args).await;
    }
    assert_eq!(observed(&world, &parked.handle).await, ["x", "one", "y"]);
}

async fn a_resume_is_explained_to_its_own_attempt_only(world: World) {
    let parked = parked(&world, ask(&world)).await;
    deliver(&world, parked.signal("go")).await;
    let first = world.claim().await.expect("resumed");
    assert_eq!(observed(&world, &first).await, ["go"]);
    world.pass(LEASE_MS).await;
    let second = world.claim_as("worker-b", LEASE_MS).await.unwrap().expect("reclaimed with a new attempt");
    assert!(observed(&world, &second).await.is_empty());
    let mut handle = second;
    for _ in 0..40 {
        park_with(&world, parked.id, handle, ask(&world)).await;
        world.backend.resume_execution(by(parked.id, ResumeTrigger::Operator)).await.unwrap();
        handle = world.claim().await.expect("resumed");
    }
    assert_eq!(observed(&world, &first).await, ["go"], "however much happened since");
}

async fn the_latest_resume_of_an_attempt_is_explained(world: World) {
    let mut parked = parked(&world, ask(&world)).await;
    for round in 0..20 {
        let name = format!("go-{round}");
        world.backend.resume_execution(by(parked.id, ResumeTrigger::Operator)).await.unwrap();
        let handle = world.claim().await.expect("resumed");
        let args = asking(&world, vec![fresh(&world, "a")], single("a", &name));
        parked = park_with(&world, parked.id, handle, args).await;
        deliver(&world, parked.signal(&name)).await;
        assert_eq!(observed(&world, &parked.handle).await, [name]);
        let handle = world.claim().await.expect("resumed");
        parked = park_with(&world, parked.id, handle, ask(&world)).await;
        assert_eq!(observed(&world, &parked.handle).await, [format!("go-{round}")], "the open one explains nothing");
    }
}

async fn an_attempt_that_never_resumed_has_nothing_to_explain(world: World) {
    let (_, handle) = held(&world).await;
    assert!(observed(&world, &handle).await.is_empty());
}

async fn the_explanation_of_a_damaged_waitpoint_is_corruption(world: World) {
    let parked = parked(&world, ask(&world)).await;
    deliver(&world, parked.signal("go")).await;
    world.damage(Damage::Waitpoint(parked.id, parked.details.waitpoint_id)).await;
    invalid(world.backend.observe_signals(&parked.handle).await, ValidationKind::Corruption);
}
