//! How many signals an execution takes, and how many a waitpoint keeps.

use std::time::Duration;

use ff_core::backend::signals::{DeliverSignalArgs, DeliverSignalResult, SignalEffect};
use ff_core::backend::suspension::{CountKind, SuspendOutcome, WaitpointBinding};
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::SignalId;
use ff_core::policy::ExecutionPolicy;

use crate::expect::{invalid, state};
use crate::suspension::fixtures::*;
use crate::{World, cases};

cases!["signals":
    the_policy_limits_the_signals_of_an_execution,
    a_delivery_may_set_another_limit,
    signals_are_counted_over_all_waitpoints_of_an_execution,
    a_closed_waitpoint_is_told_before_the_limit,
    a_waitpoint_keeps_its_newest_signals,
    a_pending_waitpoint_keeps_what_no_condition_has_seen,
    a_dropped_signal_is_still_recognised,
    signals_that_counted_are_never_dropped,
];

async fn limited(world: &World, max: u32) -> Parked {
    seed(world).await;
    let policy = ExecutionPolicy { max_signals_per_execution: max, ..ExecutionPolicy::default() };
    let (id, handle) = world.claim_one_with(&policy).await;
    park_with(world, id, handle, ask(world)).await
}

async fn the_policy_limits_the_signals_of_an_execution(world: World) {
    let parked = limited(&world, 2).await;
    for _ in 0..2 {
        deliver(&world, parked.signal("noise")).await;
    }
    invalid(world.backend.deliver_signal(parked.signal("go")).await, ValidationKind::SignalLimitExceeded);
}

async fn a_delivery_may_set_another_limit(world: World) {
    let parked = limited(&world, 2).await;
    let up_to = |max| DeliverSignalArgs { max_signals_per_execution: Some(max), ..parked.signal("noise") };
    deliver(&world, up_to(1)).await;
    invalid(world.backend.deliver_signal(up_to(1)).await, ValidationKind::SignalLimitExceeded);
    for _ in 0..5 {
        deliver(&world, up_to(0)).await;
    }
    invalid(world.backend.deliver_signal(up_to(6)).await, ValidationKind::SignalLimitExceeded);
    deliver(&world, up_to(7)).await;
}

async fn signals_are_counted_over_all_waitpoints_of_an_execution(world: World) {
    let parked = limited(&world, 2).await;
    deliver(&world, parked.signal("go")).await;
    let handle = world.claim().await.expect("resumed");
    let next = park_with(&world, parked.id, handle, ask(&world)).await;
    deliver(&world, next.signal("noise")).await;
    invalid(world.backend.deliver_signal(next.signal("go")).await, ValidationKind::SignalLimitExceeded);
}

async fn a_closed_waitpoint_is_told_before_the_limit(world: World) {
    let parked = limited(&world, 1).await;
    deliver(&world, parked.signal("go")).await;
    state(world.backend.deliver_signal(parked.signal("go")).await, StateKind::WaitpointClosed);
}

async fn a_waitpoint_keeps_its_newest_signals(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = world.backend.create_waitpoint(&handle, "a", Duration::from_secs(10)).await.unwrap();
    let send = async |name: &str| {
        let mut args = DeliverSignalArgs::new(id, waitpoint.waitpoint_id, name, waitpoint.waitpoint_token.clone());
        args.signal_maxlen = Some(3);
        deliver(&world, args).await;
    };
    for n in 0..5 {
        send(&format!("s{n}")).await;
    }
    let primary = WaitpointBinding::UsePending { waitpoint_id: waitpoint.waitpoint_id };
    let args = asking(&world, vec![primary], count(3, CountKind::DistinctSignals, &["a"]));
    let outcome = world.backend.suspend(&handle, args).await.unwrap();
    assert!(matches!(outcome, SuspendOutcome::AlreadySatisfied { .. }), "{outcome:?}");
    assert_eq!(observed(&world, &handle).await, ["s2", "s3", "s4"]);
}

async fn a_pending_waitpoint_keeps_what_no_condition_has_seen(world: World) {
    let (id, handle) = held(&world).await;
    let waitpoint = world.backend.create_waitpoint(&handle, "a", Duration::from_secs(10)).await.unwrap();
    let send = async |name: &str| {
        deliver(&world, DeliverSignalArgs::new(id, waitpoint.waitpoint_id, name, waitpoint.waitpoint_token.clone()))
            .await
    };
    send("go").await;
    for _ in 0..1100 {
        send("noise").await;
    }
    let primary = WaitpointBinding::UsePending { waitpoint_id: waitpoint.waitpoint_id };
    let outcome = world.backend.suspend(&handle, asking(&world, vec![primary], single("a", "go"))).await.unwrap();
    assert!(matches!(outcome, SuspendOutcome::AlreadySatisfied { .. }), "{outcome:?}");
}

async fn a_dropped_signal_is_still_recognised(world: World) {
    let parked = parked(&world, ask(&world)).await;
    let id = SignalId::from_uuid(world.uuid());
    let first = DeliverSignalArgs { signal_id: Some(id), ..parked.signal("noise") };
    deliver(&world, first.clone()).await;
    deliver(&world, DeliverSignalArgs { signal_maxlen: Some(1), ..parked.signal("noise") }).await;
    let again = DeliverSignalArgs { signal_name: "go".into(), ..first };
    let answer = world.backend.deliver_signal(again).await.unwrap();
    assert_eq!(answer, DeliverSignalResult::Duplicate { existing_signal_id: id });
}

async fn signals_that_counted_are_never_dropped(world: World) {
    let parked = parked_on(&world, &["a"], all([single("a", "one"), single("a", "two")])).await;
    deliver(&world, parked.signal("one")).await;
    for _ in 0..200 {
        let noise = DeliverSignalArgs { signal_maxlen: Some(2), ..parked.signal("noise") };
        assert_eq!(deliver(&world, noise).await, SignalEffect::SignalIgnoredMatcherFailed);
    }
    deliver(&world, parked.signal("two")).await;
    assert_eq!(observed(&world, &parked.handle).await, ["one", "two"]);
}
