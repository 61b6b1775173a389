//! Everything an execution went on from.

use std::collections::BTreeSet;

use ff_core::Blob;
use ff_core::backend::signals::DeliverSignalArgs;
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger, Resumption, SuspendArgs, SuspendOutcome};
use ff_core::error::{Entity, ValidationKind};
use ff_core::handle::Handle;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::policy::TimeoutBehavior;

use super::fixtures::*;
use crate::expect::{invalid, not_found};
use crate::stage::replay;
use crate::world::LEASE_MS;
use crate::{Damage, World, cases};

cases!["suspension":
    a_resumption_tells_what_was_waited_for_and_what_came,
    resumptions_are_told_in_their_order,
    resumptions_outlive_the_attempt_that_resumed,
    a_resumption_by_timeout_says_so,
    a_resumption_by_an_operator_has_no_signal,
    a_suspension_that_was_satisfied_before_it_began_is_a_resumption,
    a_suspension_that_goes_on_or_ended_otherwise_is_none,
    resumptions_come_in_pages,
    a_replay_starts_without_resumptions,
    resumptions_of_a_later_life_come_in_pages_of_their_own,
    resumptions_of_a_missing_execution_are_not_found,
    resumptions_of_an_unreadable_execution_are_reported_as_corruption,
];

async fn resumptions(world: &World, id: ExecutionId) -> Vec<Resumption> {
    world.backend.list_resumptions(id, None, 100).await.unwrap()
}

/// Suspends on a key, answers with a body, and claims what goes on.
async fn answer(world: &World, id: ExecutionId, handle: Handle, key: &str, body: &str) -> Handle {
    let parked = park_with(world, id, handle, asking(world, vec![fresh(world, key)], any(key))).await;
    let signal = DeliverSignalArgs { payload: Some(Blob::from(body)), ..parked.signal("answer") };
    deliver(world, signal).await;
    world.claim().await.expect("it goes on")
}

fn bodies(told: &[Resumption]) -> Vec<Option<Blob>> {
    told.iter().flat_map(|one| one.signals.iter().map(|signal| signal.payload.clone())).collect()
}

async fn a_resumption_tells_what_was_waited_for_and_what_came(world: World) {
    let parked = parked_on(&world, &["a", "b"], all([any("a"), any("b")])).await;
    world.advance(5);
    let from = |args: DeliverSignalArgs, who: &str| DeliverSignalArgs { source_identity: who.to_owned(), ..args };
    let first = from(parked.signal_at("b", "two"), "bob");
    deliver(&world, DeliverSignalArgs { payload: Some(Blob::from("2")), ..first }).await;
    world.advance(5);
    deliver(&world, from(parked.signal_at("a", "one"), "alice")).await;
    let told = resumptions(&world, parked.id).await;
    let [one] = &told[..] else { panic!("expected one, got {told:?}") };
    assert_eq!((one.ordinal, one.attempt_index, one.timed_out), (0, AttemptIndex(0), false));
    assert_eq!((one.trigger, one.resumed_at), (ResumeTrigger::Signal, world.now()));
    assert_eq!(one.waitpoint_keys, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    let seen: Vec<_> = one
        .signals
        .iter()
        .map(|signal| (&*signal.signal_name, &*signal.waitpoint_key, &*signal.source_identity, signal.payload.clone()))
        .collect();
    assert_eq!(seen, [("two", "b", "bob", Some(Blob::from("2"))), ("one", "a", "alice", None)]);
    let handle = world.claim().await.unwrap();
    assert_eq!(world.backend.observe_signals(&handle).await.unwrap(), one.signals);
}

async fn resumptions_are_told_in_their_order(world: World) {
    let (id, mut handle) = held(&world).await;
    for body in ["1", "2", "3"] {
        handle = answer(&world, id, handle, "same", body).await;
    }
    let told = resumptions(&world, id).await;
    assert_eq!(told.iter().map(|one| one.ordinal).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(bodies(&told), ["1", "2", "3"].map(|body| Some(Blob::from(body))));
}

async fn resumptions_outlive_the_attempt_that_resumed(world: World) {
    let (id, handle) = held(&world).await;
    let resumed = answer(&world, id, handle, "a", "1").await;
    world.pass(LEASE_MS).await;
    let reclaimed = world.claim().await.expect("lost, so it is reclaimed");
    assert_eq!(world.backend.observe_signals(&reclaimed).await.unwrap(), []);
    let told = resumptions(&world, id).await;
    assert_eq!((told[0].attempt_index, bodies(&told)), (AttemptIndex(0), vec![Some(Blob::from("1"))]));
    drop(resumed);
    let again = answer(&world, id, reclaimed, "a", "2").await;
    let told = resumptions(&world, id).await;
    assert_eq!(told.iter().map(|one| one.attempt_index.0).collect::<Vec<_>>(), [0, 1]);
    world.backend.complete(&again, None).await.unwrap();
    assert_eq!(resumptions(&world, id).await, told, "also of one that is over");
}

async fn a_resumption_by_timeout_says_so(world: World) {
    let timeout = SuspendArgs {
        timeout_at: Some(world.now().plus(1_000)),
        timeout_behavior: TimeoutBehavior::AutoResumeWithTimeoutSignal,
        ..ask(&world)
    };
    let parked = parked(&world, timeout).await;
    world.pass(1_000).await;
    let told = resumptions(&world, parked.id).await;
    assert_eq!((told.len(), told[0].timed_out, told[0].trigger), (1, true, ResumeTrigger::AutoResume));
    assert_eq!(told[0].signals.len(), 1, "the timeout's own");
}

async fn a_resumption_by_an_operator_has_no_signal(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let resume = ResumeExecutionArgs::new(parked.id, ResumeTrigger::Operator);
    world.backend.resume_execution(resume).await.unwrap();
    let told = resumptions(&world, parked.id).await;
    assert_eq!((told[0].trigger, told[0].timed_out, told[0].signals.len()), (ResumeTrigger::Operator, false, 0));
}

async fn a_suspension_that_was_satisfied_before_it_began_is_a_resumption(world: World) {
    let (id, handle) = held(&world).await;
    let hour = std::time::Duration::from_secs(3600);
    let pending = world.backend.create_waitpoint(&handle, "a", hour).await.unwrap();
    let signal = DeliverSignalArgs::new(id, pending.waitpoint_id, "go", pending.waitpoint_token.clone());
    deliver(&world, signal).await;
    let binding = ff_core::backend::suspension::WaitpointBinding::UsePending { waitpoint_id: pending.waitpoint_id };
    let outcome = world.backend.suspend(&handle, asking(&world, vec![binding], single("a", "go"))).await.unwrap();
    assert!(matches!(outcome, SuspendOutcome::AlreadySatisfied { .. }), "{outcome:?}");
    let told = resumptions(&world, id).await;
    assert_eq!((told.len(), &*told[0].signals[0].signal_name), (1, "go"));
}

async fn a_suspension_that_goes_on_or_ended_otherwise_is_none(world: World) {
    let parked = parked(&world, ask(&world)).await;
    assert_eq!(resumptions(&world, parked.id).await, []);
    crate::flows::kit::cancel(&world, parked.id).await;
    assert_eq!(resumptions(&world, parked.id).await, []);
}

async fn resumptions_come_in_pages(world: World) {
    let (id, mut handle) = held(&world).await;
    for number in 0..20 {
        handle = answer(&world, id, handle, "a", &number.to_string()).await;
    }
    let all = resumptions(&world, id).await;
    assert_eq!(all.len(), 20);
    assert_eq!(world.backend.list_resumptions(id, None, 3).await.unwrap(), all[..3]);
    assert_eq!(world.backend.list_resumptions(id, Some(2), 3).await.unwrap(), all[3..6]);
    assert_eq!(world.backend.list_resumptions(id, Some(2), u32::MAX).await.unwrap(), all[3..]);
    assert_eq!(world.backend.list_resumptions(id, Some(19), 3).await.unwrap(), []);
    assert_eq!(world.backend.list_resumptions(id, Some(u32::MAX), 3).await.unwrap(), []);
    assert_eq!(world.backend.list_resumptions(id, None, 0).await.unwrap(), []);
}

async fn a_replay_starts_without_resumptions(world: World) {
    let (id, handle) = held(&world).await;
    let handle = answer(&world, id, handle, "a", "1").await;
    world.backend.complete(&handle, None).await.unwrap();
    replay(&world, id).await;
    assert_eq!(resumptions(&world, id).await, []);
    let handle = world.claim().await.unwrap();
    answer(&world, id, handle, "a", "2").await;
    let told = resumptions(&world, id).await;
    assert_eq!((told.len(), told[0].ordinal, bodies(&told)), (1, 1, vec![Some(Blob::from("2"))]));
}

async fn resumptions_of_a_later_life_come_in_pages_of_their_own(world: World) {
    let (id, mut handle) = held(&world).await;
    for number in 0..20 {
        handle = answer(&world, id, handle, "a", &number.to_string()).await;
    }
    world.backend.complete(&handle, None).await.unwrap();
    replay(&world, id).await;
    assert_eq!(resumptions(&world, id).await, []);
    let mut handle = world.claim().await.unwrap();
    for number in 20..23 {
        handle = answer(&world, id, handle, "a", &number.to_string()).await;
    }
    let ordinals = async |after, limit| -> Vec<u32> {
        let told = world.backend.list_resumptions(id, after, limit).await.unwrap();
        told.iter().map(|one| one.ordinal).collect()
    };
    assert_eq!(ordinals(None, 2).await, [20, 21]);
    assert_eq!(ordinals(Some(5), 100).await, [20, 21, 22]);
    assert_eq!(ordinals(Some(20), 100).await, [21, 22]);
}

async fn resumptions_of_a_missing_execution_are_not_found(world: World) {
    not_found(world.backend.list_resumptions(world.execution_id(), None, 10).await, Entity::Execution);
}

async fn resumptions_of_an_unreadable_execution_are_reported_as_corruption(world: World) {
    let id = world.create().await;
    world.damage(Damage::Execution(id)).await;
    invalid(world.backend.list_resumptions(id, None, 10).await, ValidationKind::Corruption);
}
