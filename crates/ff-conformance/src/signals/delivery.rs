//! What a delivered signal does, and what its repetition answers.

use ff_core::Blob;
use ff_core::backend::signals::{DeliverSignalArgs, DeliverSignalResult, SignalEffect};
use ff_core::backend::subscriptions::{ScannerFilter, SignalDeliveryEffect};
use ff_core::backend::suspension::{ResumeCondition, ResumePolicy, SuspendArgs};
use ff_core::cursor::EventCursor;
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::SignalId;
use ff_core::policy::TimeoutBehavior;
use ff_core::state::{BlockingReason, PublicState};
use futures_util::StreamExt;

use crate::expect::{invalid, state};
use crate::suspension::fixtures::*;
use crate::{World, cases};

cases!["signals":
    a_matching_signal_resumes,
    a_signal_of_another_name_does_nothing,
    a_wildcard_takes_any_signal,
    no_signal_resumes_what_only_a_person_or_a_timeout_may,
    a_resume_delay_of_the_delivery_wins_over_that_of_the_policy,
    a_bad_signal_is_refused,
    an_idempotency_key_makes_repetitions_duplicates,
    a_repetition_is_a_duplicate_even_after_the_execution_moved_on,
    an_idempotency_key_is_remembered_as_long_as_asked,
    an_idempotency_key_belongs_to_its_waitpoint,
    a_signal_id_is_accepted_once,
    a_signal_id_may_come_to_two_waitpoints,
    signals_without_a_key_are_all_different,
    a_finished_execution_takes_no_signals,
    a_signal_for_a_later_waitpoint_does_not_touch_an_earlier_one,
    every_authenticated_delivery_is_told,
];

async fn a_matching_signal_resumes(world: World) {
    let parked = parked(&world, ask(&world)).await;
    assert_eq!(deliver(&world, parked.signal("go")).await, SignalEffect::ResumeConditionSatisfied);
    let seen = snapshot(&world, parked.id).await;
    assert_eq!((seen.public_state, seen.current_waitpoint), (PublicState::Waiting, None));
    assert_eq!(seen.blocking_reason, Some(BlockingReason::WaitingForWorker));
    let suspended = world.backend.list_suspended(&parked.id.partition().into(), None, 10).await.unwrap();
    assert_eq!(suspended.entries, []);
    state(world.backend.deliver_signal(parked.signal("go")).await, StateKind::WaitpointClosed);
}

async fn a_signal_of_another_name_does_nothing(world: World) {
    let parked = parked(&world, ask(&world)).await;
    assert_eq!(deliver(&world, parked.signal("stop")).await, SignalEffect::NoOp);
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
}

async fn a_wildcard_takes_any_signal(world: World) {
    let parked = parked_on(&world, &["a"], any("a")).await;
    assert_eq!(deliver(&world, parked.signal("whatever")).await, SignalEffect::ResumeConditionSatisfied);
}

async fn no_signal_resumes_what_only_a_person_or_a_timeout_may(world: World) {
    seed(&world).await;
    for condition in [ResumeCondition::OperatorOnly {}, ResumeCondition::TimeoutOnly {}] {
        let (id, handle) = world.claim_one().await;
        let args = asking(&world, vec![fresh(&world, "a")], condition);
        let timeout_at = Some(world.now().plus(1000));
        let timeout_behavior = TimeoutBehavior::AutoResumeWithTimeoutSignal;
        let parked = park_with(&world, id, handle, SuspendArgs { timeout_at, timeout_behavior, ..args }).await;
        for name in ["go", "operator_only", "timeout", "*"] {
            assert_eq!(deliver(&world, parked.signal(name)).await, SignalEffect::NoOp);
        }
        assert_eq!(world.state(id).await, PublicState::Suspended);
        world.pass(1000).await;
        assert_eq!(observed(&world, &parked.handle).await, ["timeout"]);
        let handle = world.claim().await.expect("resumed");
        world.backend.complete(&handle, None).await.unwrap();
    }
}

async fn a_resume_delay_of_the_delivery_wins_over_that_of_the_policy(world: World) {
    seed(&world).await;
    for (policy, delivery, effective) in [
        (None, None, 0),
        (Some(1000), None, 1000),
        (Some(1000), Some(0), 0),
        (Some(1000), Some(2000), 2000),
        (None, Some(2000), 2000),
    ] {
        let (id, handle) = world.claim_one().await;
        let resume_policy = ResumePolicy { resume_delay_ms: policy };
        let parked = park_with(&world, id, handle, SuspendArgs { resume_policy, ..ask(&world) }).await;
        let signal = DeliverSignalArgs { resume_delay_ms: delivery, ..parked.signal("go") };
        assert_eq!(deliver(&world, signal).await, SignalEffect::ResumeConditionSatisfied);
        if effective > 0 {
            assert_eq!(world.state(id).await, PublicState::Delayed, "{policy:?} {delivery:?}");
            let reason = info(&world, id).await.state_vector.blocking_reason;
            assert_eq!(reason, BlockingReason::WaitingForResumeDelay);
            world.pass(effective - 1).await;
            assert_eq!(world.claim().await, None, "{policy:?} {delivery:?}");
            world.pass(1).await;
        }
        let handle = world.claim().await.expect("claimable by now");
        world.backend.complete(&handle, None).await.unwrap();
    }
}

async fn a_bad_signal_is_refused(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let with_payload = |bytes: usize, name: &str| {
        let payload = Some(Blob::from(vec![7; bytes]));
        DeliverSignalArgs { payload, ..parked.signal(name) }
    };
    invalid(world.backend.deliver_signal(with_payload(65_537, "")).await, ValidationKind::PayloadTooLarge);
    invalid(world.backend.deliver_signal(with_payload(65_536, "")).await, ValidationKind::InvalidInput);
    let long = || "x".repeat(257);
    let bad = [
        DeliverSignalArgs { signal_name: long(), ..parked.signal("go") },
        DeliverSignalArgs { signal_category: long(), ..parked.signal("go") },
        DeliverSignalArgs { source_type: "\u{7}".into(), ..parked.signal("go") },
        DeliverSignalArgs { source_identity: long(), ..parked.signal("go") },
        DeliverSignalArgs { payload_encoding: Some(long()), ..parked.signal("go") },
        DeliverSignalArgs { correlation_id: Some(long()), ..parked.signal("go") },
        DeliverSignalArgs { idempotency_key: Some(long()), ..parked.signal("go") },
        DeliverSignalArgs { resume_delay_ms: Some(u64::MAX), ..parked.signal("go") },
    ];
    for args in bad {
        invalid(world.backend.deliver_signal(args).await, ValidationKind::InvalidInput);
    }
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
    let whole = deliver(&world, with_payload(65_536, "go")).await;
    assert_eq!(whole, SignalEffect::ResumeConditionSatisfied);
}

async fn again(world: &World, args: DeliverSignalArgs) -> SignalId {
    match world.backend.deliver_signal(args).await.unwrap() {
        DeliverSignalResult::Duplicate { existing_signal_id } => existing_signal_id,
        other @ DeliverSignalResult::Accepted { .. } => panic!("expected a duplicate, got {other:?}"),
    }
}

fn keyed(args: DeliverSignalArgs, key: &str) -> DeliverSignalArgs {
    DeliverSignalArgs { idempotency_key: Some(key.into()), ..args }
}

async fn an_idempotency_key_makes_repetitions_duplicates(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let (first, effect) = delivered(&world, keyed(parked.signal("noise"), "once")).await;
    assert_eq!(effect, SignalEffect::NoOp);
    assert_eq!(again(&world, keyed(parked.signal("go"), "once")).await, first, "whatever else it says");
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
    assert_eq!(deliver(&world, keyed(parked.signal("go"), "twice")).await, SignalEffect::ResumeConditionSatisfied);
}

async fn a_repetition_is_a_duplicate_even_after_the_execution_moved_on(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let id = SignalId::from_uuid(world.uuid());
    let mut args = keyed(parked.signal("go"), "once");
    args.signal_id = Some(id);
    args.max_signals_per_execution = Some(1);
    delivered(&world, args.clone()).await;
    let by_id = DeliverSignalArgs { idempotency_key: None, ..args.clone() };
    assert_eq!(again(&world, args.clone()).await, id, "the waitpoint is closed and the limit is reached");
    assert_eq!(again(&world, by_id.clone()).await, id);
    let handle = world.claim().await.expect("resumed");
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(again(&world, args).await, id, "the execution is over");
    assert_eq!(again(&world, by_id).await, id);
}

async fn an_idempotency_key_is_remembered_as_long_as_asked(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let day = 24 * 60 * 60 * 1000;
    let brief = DeliverSignalArgs { dedup_ttl_ms: Some(1000), ..keyed(parked.signal("noise"), "brief") };
    let usual = keyed(parked.signal("noise"), "usual");
    let off = DeliverSignalArgs { dedup_ttl_ms: Some(0), ..keyed(parked.signal("noise"), "off") };
    for args in [&brief, &usual, &off] {
        deliver(&world, args.clone()).await;
    }
    deliver(&world, off).await;
    world.pass(999).await;
    again(&world, brief.clone()).await;
    world.pass(1).await;
    deliver(&world, brief).await;
    world.pass(day - 1001).await;
    again(&world, usual.clone()).await;
    world.pass(1).await;
    deliver(&world, usual).await;
}

async fn an_idempotency_key_belongs_to_its_waitpoint(world: World) {
    let parked = parked_on(&world, &["a", "b"], all([any("a"), any("b")])).await;
    deliver(&world, keyed(parked.signal_at("a", "x"), "once")).await;
    let other = deliver(&world, keyed(parked.signal_at("b", "x"), "once")).await;
    assert_eq!(other, SignalEffect::ResumeConditionSatisfied);
}

async fn a_signal_id_is_accepted_once(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let id = SignalId::from_uuid(world.uuid());
    let named = |name: &str| DeliverSignalArgs { signal_id: Some(id), ..parked.signal(name) };
    assert_eq!(delivered(&world, named("noise")).await.0, id);
    assert_eq!(again(&world, named("go")).await, id);
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
}

async fn a_signal_id_may_come_to_two_waitpoints(world: World) {
    let parked = parked_on(&world, &["a", "b"], all([any("a"), any("b")])).await;
    let id = SignalId::from_uuid(world.uuid());
    for key in ["a", "b"] {
        delivered(&world, DeliverSignalArgs { signal_id: Some(id), ..parked.signal_at(key, key) }).await;
    }
    assert_eq!(observed(&world, &parked.handle).await, ["a", "b"]);
}

async fn signals_without_a_key_are_all_different(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let empty = || keyed(parked.signal("noise"), "");
    let first = delivered(&world, empty()).await.0;
    let second = delivered(&world, empty()).await.0;
    assert_ne!(first, second);
}

async fn a_finished_execution_takes_no_signals(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let cancel = ff_core::backend::attempts::CancelExecutionArgs {
        execution_id: parked.id,
        reason: String::new(),
        source: ff_core::rules::fence::CancelSource::OperatorOverride,
        fence: ff_core::ids::FenceTriple::NONE,
    };
    world.backend.cancel_execution(cancel).await.unwrap();
    let args = DeliverSignalArgs { max_signals_per_execution: Some(1), ..parked.signal("go") };
    state(world.backend.deliver_signal(args).await, StateKind::TargetNotSignalable);
}

async fn a_signal_for_a_later_waitpoint_does_not_touch_an_earlier_one(world: World) {
    let first = parked(&world, ask(&world)).await;
    deliver(&world, first.signal("go")).await;
    let handle = world.claim().await.expect("resumed");
    let args = asking(&world, vec![fresh(&world, "a")], single("a", "next"));
    let second = park_with(&world, first.id, handle, args).await;
    assert_eq!(deliver(&world, second.signal("go")).await, SignalEffect::NoOp, "this condition is another one");
    state(world.backend.deliver_signal(first.signal("next")).await, StateKind::WaitpointClosed);
    assert_eq!(world.state(first.id).await, PublicState::Suspended);
}

async fn every_authenticated_delivery_is_told(world: World) {
    let (id, handle) = held(&world).await;
    let early = world.backend.create_waitpoint(&handle, "p", std::time::Duration::from_secs(10)).await.unwrap();
    let condition = all([single("a", "one"), single("a", "two")]);
    let args = asking(&world, vec![fresh(&world, "a")], condition);
    let parked = park_with(&world, id, handle, args).await;
    let filter = ScannerFilter::default();
    let mut feed = world.backend.subscribe_signal_delivery(EventCursor::TAIL, &filter).await.unwrap();

    let buffered = DeliverSignalArgs::new(id, early.waitpoint_id, "x", early.waitpoint_token.clone());
    let mut ids = vec![(delivered(&world, buffered).await.0, SignalDeliveryEffect::Buffered)];
    let mut one = keyed(parked.signal("one"), "once");
    one.source_identity = "ann".into();
    let first = delivered(&world, one.clone()).await.0;
    ids.push((first, SignalDeliveryEffect::Appended));
    again(&world, one).await;
    ids.push((first, SignalDeliveryEffect::Deduped));
    ids.push((delivered(&world, parked.signal("noise")).await.0, SignalDeliveryEffect::Ignored));
    ids.push((delivered(&world, parked.signal("two")).await.0, SignalDeliveryEffect::Satisfied));
    state(world.backend.deliver_signal(parked.signal("late")).await, StateKind::WaitpointClosed);

    for (signal_id, effect) in ids {
        let event = feed.next().await.unwrap().unwrap();
        assert_eq!((event.execution_id, event.signal_id, event.effect), (id, signal_id, effect));
        assert_eq!(event.at, world.now());
        let buffered = effect == SignalDeliveryEffect::Buffered;
        let waitpoint = if buffered { early.waitpoint_id } else { parked.details.waitpoint_id };
        assert_eq!(event.waitpoint_id, Some(waitpoint));
        let source = event.source_identity.unwrap_or_default();
        assert_eq!(source == "ann", signal_id == first, "{source}");
    }
}
