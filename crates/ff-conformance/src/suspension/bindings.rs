//! Which waitpoints a suspend may bind, and what a pending one brings along.

use std::time::Duration;

use ff_core::backend::signals::{DeliverSignalArgs, PendingWaitpoint, SignalEffect};
use ff_core::backend::suspension::{CountKind, SuspendArgs, SuspendOutcome, WaitpointBinding};
use ff_core::error::{StateKind, ValidationKind};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, WaitpointId};
use ff_core::state::PublicState;

use super::fixtures::*;
use crate::expect::{conflict, contention, invalid, state};
use crate::world::LEASE_MS;
use crate::{Damage, World, cases};

cases!["suspension":
    a_waitpoint_id_is_used_once,
    a_pending_waitpoint_must_exist,
    a_pending_waitpoint_is_used_once,
    a_pending_waitpoint_belongs_to_its_execution_and_attempt,
    a_waitpoint_of_an_earlier_attempt_can_be_taken_over,
    a_pending_waitpoint_that_ran_out_is_not_bound,
    a_pending_waitpoint_must_have_the_key_of_the_condition,
    a_pending_waitpoint_keeps_its_token,
    a_suspend_without_a_signing_secret_is_refused,
    a_damaged_waitpoint_is_corruption,
    buffered_signals_that_satisfy_leave_the_lease_untouched,
    an_already_satisfied_suspend_is_remembered_by_its_key,
    an_already_satisfied_suspend_closes_every_waitpoint,
    buffered_signals_count_for_composite_conditions,
    buffered_signals_that_satisfy_in_part_are_kept,
    buffered_signals_that_do_not_match_are_ignored,
    an_attempt_may_suspend_again_after_an_already_satisfied_suspend,
];

async fn pending(world: &World, handle: &Handle, key: &str) -> PendingWaitpoint {
    world.backend.create_waitpoint(handle, key, Duration::from_secs(10)).await.unwrap()
}

fn using(world: &World, waitpoint: WaitpointId) -> SuspendArgs {
    asking(world, vec![WaitpointBinding::UsePending { waitpoint_id: waitpoint }], single("a", "go"))
}

async fn buffer(world: &World, id: ExecutionId, to: &PendingWaitpoint, name: &str, source: &str) {
    let mut args = DeliverSignalArgs::new(id, to.waitpoint_id, name, to.waitpoint_token.clone());
    args.source_identity = source.into();
    assert_eq!(deliver(world, args).await, SignalEffect::BufferedForPendingWaitpoint);
}

/// Both ways to suspend, the second by the fence of the current owner.
async fn both_ways(world: &World, id: ExecutionId, handle: &Handle, args: SuspendArgs) -> [Refusal; 2] {
    let fence = fence_of(world, id).await;
    let first = world.backend.suspend(handle, args.clone()).await;
    [first, world.backend.suspend_by_triple(id, fence, args).await]
}

type Refusal = ff_core::Result<SuspendOutcome>;

async fn a_waitpoint_id_is_used_once(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "p").await;
    let taken = |id| {
        let binding = WaitpointBinding::Fresh { waitpoint_id: id, waitpoint_key: "a".into() };
        asking(&world, vec![binding], any("a"))
    };
    for refusal in both_ways(&world, id, &handle, taken(waiting.waitpoint_id)).await {
        conflict(refusal, "waitpoint_already_exists");
    }
    world.backend.close_waitpoint(id, waiting.waitpoint_id, world.now()).await.unwrap();
    conflict(world.backend.suspend(&handle, taken(waiting.waitpoint_id)).await, "waitpoint_already_exists");
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn a_pending_waitpoint_must_exist(world: World) {
    let (id, handle) = held(&world).await;
    for refusal in both_ways(&world, id, &handle, using(&world, WaitpointId::from_uuid(world.uuid()))).await {
        contention(refusal, "waitpoint_not_found");
    }
}

async fn a_pending_waitpoint_is_used_once(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    let parked = park_with(&world, id, handle, using(&world, waiting.waitpoint_id)).await;
    deliver(&world, parked.signal("go")).await;
    let handle = world.claim().await.expect("resumed");
    for refusal in both_ways(&world, id, &handle, using(&world, waiting.waitpoint_id)).await {
        state(refusal, StateKind::WaitpointNotPending);
    }
}

async fn a_pending_waitpoint_belongs_to_its_execution_and_attempt(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = world.backend.create_waitpoint(&handle, "a", Duration::from_secs(3600)).await.unwrap();
    let (other, others_handle) = world.claim_one().await;
    for refusal in both_ways(&world, other, &others_handle, using(&world, waiting.waitpoint_id)).await {
        invalid(refusal, ValidationKind::InvalidWaitpointForExecution);
    }
    world.backend.cancel(&others_handle, "").await.unwrap();
    world.pass(LEASE_MS).await;
    let next = world.claim_as("worker-b", LEASE_MS).await.unwrap().expect("reclaimed");
    for refusal in both_ways(&world, id, &next, using(&world, waiting.waitpoint_id)).await {
        invalid(refusal, ValidationKind::InvalidWaitpointForExecution);
    }
}

async fn a_waitpoint_of_an_earlier_attempt_can_be_taken_over(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = world.backend.create_waitpoint(&handle, "a", Duration::from_secs(3600)).await.unwrap();
    let earlier = WaitpointBinding::UseEarlier { waitpoint_id: waiting.waitpoint_id };
    let args = || asking(&world, vec![earlier.clone()], single("a", "go"));
    let (other, others_handle) = world.claim_one().await;
    for refusal in both_ways(&world, other, &others_handle, args()).await {
        invalid(refusal, ValidationKind::InvalidWaitpointForExecution);
    }
    world.backend.cancel(&others_handle, "").await.unwrap();
    world.pass(LEASE_MS).await;
    let next = world.claim_as("worker-b", LEASE_MS).await.unwrap().expect("reclaimed");
    let outcome = world.backend.suspend(&next, args()).await.unwrap();
    assert!(matches!(outcome, SuspendOutcome::Suspended { .. }), "{outcome:?}");
    let signal = DeliverSignalArgs::new(id, waiting.waitpoint_id, "go", waiting.waitpoint_token.clone());
    world.backend.deliver_signal(signal).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Waiting, "what was handed out before still counts");
}

async fn a_pending_waitpoint_that_ran_out_is_not_bound(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    world.advance(10_000);
    for refusal in both_ways(&world, id, &handle, using(&world, waiting.waitpoint_id)).await {
        state(refusal, StateKind::PendingWaitpointExpired);
    }
    world.run_due().await;
    state(world.backend.suspend(&handle, using(&world, waiting.waitpoint_id)).await, StateKind::WaitpointNotPending);
}

async fn a_pending_waitpoint_must_have_the_key_of_the_condition(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "b").await;
    for refusal in both_ways(&world, id, &handle, using(&world, waiting.waitpoint_id)).await {
        assert_eq!(invalid(refusal, ValidationKind::InvalidInput), "waitpoint_key_mismatch");
    }
    let primary = WaitpointBinding::UsePending { waitpoint_id: waiting.waitpoint_id };
    let twice = asking(&world, vec![primary.clone(), fresh(&world, "b")], all([any("b")]));
    let detail = invalid(world.backend.suspend(&handle, twice).await, ValidationKind::InvalidInput);
    assert!(detail.starts_with("duplicate_waitpoint_key"), "{detail}");
    let missing = asking(&world, vec![primary, fresh(&world, "a")], all([any("a"), any("c")]));
    let detail = invalid(world.backend.suspend(&handle, missing).await, ValidationKind::InvalidInput);
    assert!(detail.starts_with("referenced_waitpoint_key_missing_binding"), "{detail}");
}

async fn a_pending_waitpoint_keeps_its_token(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    let rotate = ff_core::backend::signals::RotateWaitpointHmacSecretAllArgs {
        new_kid: "k2".into(),
        new_secret_hex: OTHER_SECRET.into(),
        grace_ms: 60_000,
    };
    world.backend.rotate_waitpoint_hmac_secret_all(rotate).await.unwrap();
    let parked = park_with(&world, id, handle, using(&world, waiting.waitpoint_id)).await;
    assert_eq!(parked.details.waitpoint_token, waiting.waitpoint_token);
    assert_eq!(deliver(&world, parked.signal("go")).await, SignalEffect::ResumeConditionSatisfied);
}

async fn a_suspend_without_a_signing_secret_is_refused(world: World) {
    let (id, handle) = world.claim_one().await;
    for refusal in both_ways(&world, id, &handle, ask(&world)).await {
        assert_eq!(invalid(refusal, ValidationKind::InvalidInput), "hmac_secret_not_initialized");
    }
    let waitpoint = world.backend.create_waitpoint(&handle, "a", Duration::from_secs(1)).await;
    assert_eq!(invalid(waitpoint, ValidationKind::InvalidInput), "hmac_secret_not_initialized");
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn a_damaged_waitpoint_is_corruption(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    world.damage(Damage::Waitpoint(id, waiting.waitpoint_id)).await;
    for refusal in both_ways(&world, id, &handle, using(&world, waiting.waitpoint_id)).await {
        invalid(refusal, ValidationKind::Corruption);
    }
}

async fn buffered_signals_that_satisfy_leave_the_lease_untouched(world: World) {
    for by_triple in [false, true] {
        let (id, handle) = held(&world).await;
        let waiting = pending(&world, &handle, "a").await;
        buffer(&world, id, &waiting, "go", "").await;
        let (before, fence) = (snapshot(&world, id).await, fence_of(&world, id).await);

        let args = using(&world, waiting.waitpoint_id);
        let outcome = if by_triple {
            world.backend.suspend_by_triple(id, fence, args).await.unwrap()
        } else {
            world.backend.suspend(&handle, args).await.unwrap()
        };

        let SuspendOutcome::AlreadySatisfied { details } = outcome else { panic!("{outcome:?}") };
        assert_eq!(details.waitpoint_id, waiting.waitpoint_id);
        assert_eq!(details.waitpoint_token, waiting.waitpoint_token);
        let after = snapshot(&world, id).await;
        assert_eq!((after.public_state, after.current_waitpoint), (PublicState::Active, None));
        assert_eq!(after.current_lease, before.current_lease);
        assert_eq!(after.current_attempt, before.current_attempt);
        assert_eq!(observed(&world, &handle).await, ["go"]);
        let late = DeliverSignalArgs::new(id, waiting.waitpoint_id, "go", waiting.waitpoint_token);
        state(world.backend.deliver_signal(late).await, StateKind::WaitpointClosed);
        world.backend.complete(&handle, None).await.unwrap();
    }
}

async fn an_already_satisfied_suspend_is_remembered_by_its_key(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    buffer(&world, id, &waiting, "go", "").await;
    let args = SuspendArgs { idempotency_key: Some("once".into()), ..using(&world, waiting.waitpoint_id) };
    let first = world.backend.suspend(&handle, args.clone()).await.unwrap();
    assert_eq!(world.backend.suspend(&handle, args).await.unwrap(), first);
}

async fn an_already_satisfied_suspend_closes_every_waitpoint(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    buffer(&world, id, &waiting, "go", "").await;
    let primary = WaitpointBinding::UsePending { waitpoint_id: waiting.waitpoint_id };
    let any_of = count(1, CountKind::DistinctSignals, &["a", "b"]);
    let args = asking(&world, vec![primary, fresh(&world, "b")], any_of);
    let SuspendOutcome::AlreadySatisfied { details } = world.backend.suspend(&handle, args).await.unwrap() else {
        panic!("expected no suspension")
    };
    let other = &details.additional_waitpoints[0];
    let late = DeliverSignalArgs::new(id, other.waitpoint_id, "go", other.waitpoint_token.clone());
    state(world.backend.deliver_signal(late).await, StateKind::WaitpointClosed);
}

async fn buffered_signals_count_for_composite_conditions(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    for source in ["ann", "ann", "bob"] {
        buffer(&world, id, &waiting, "vote", source).await;
    }
    let primary = WaitpointBinding::UsePending { waitpoint_id: waiting.waitpoint_id };
    let args = asking(&world, vec![primary], count(2, CountKind::DistinctSources, &["a"]));
    let outcome = world.backend.suspend(&handle, args).await.unwrap();
    assert!(matches!(outcome, SuspendOutcome::AlreadySatisfied { .. }), "{outcome:?}");
    let sources: Vec<_> = world.backend.observe_signals(&handle).await.unwrap();
    let sources: Vec<_> = sources.iter().map(|signal| signal.source_identity.as_str()).collect();
    assert_eq!(sources, ["ann", "bob"], "the repetition explains nothing");
}

async fn buffered_signals_that_satisfy_in_part_are_kept(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    buffer(&world, id, &waiting, "go", "").await;
    let primary = WaitpointBinding::UsePending { waitpoint_id: waiting.waitpoint_id };
    let args = asking(&world, vec![primary, fresh(&world, "b")], all([single("a", "go"), single("b", "go")]));
    let parked = park_with(&world, id, handle, args).await;
    let again = deliver(&world, parked.signal_at("a", "go")).await;
    assert_eq!(again, SignalEffect::AppendedToWaitpointDuplicate, "the buffered one counted");
    assert_eq!(deliver(&world, parked.signal_at("b", "go")).await, SignalEffect::ResumeConditionSatisfied);
    assert_eq!(observed(&world, &parked.handle).await, ["go", "go"]);
}

async fn buffered_signals_that_do_not_match_are_ignored(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    buffer(&world, id, &waiting, "stop", "").await;
    let parked = park_with(&world, id, handle, using(&world, waiting.waitpoint_id)).await;
    deliver(&world, parked.signal("go")).await;
    assert_eq!(observed(&world, &parked.handle).await, ["go"]);
}

async fn an_attempt_may_suspend_again_after_an_already_satisfied_suspend(world: World) {
    let (id, handle) = held(&world).await;
    let waiting = pending(&world, &handle, "a").await;
    buffer(&world, id, &waiting, "go", "").await;
    world.backend.suspend(&handle, using(&world, waiting.waitpoint_id)).await.unwrap();
    let args = asking(&world, vec![fresh(&world, "b")], single("b", "next"));
    let parked = park_with(&world, id, handle, args).await;
    assert_eq!(observed(&world, &parked.handle).await, ["go"], "the last one that is over");
    deliver(&world, parked.signal("next")).await;
    assert_eq!(observed(&world, &parked.handle).await, ["next"]);
}
