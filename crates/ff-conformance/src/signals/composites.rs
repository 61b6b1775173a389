//! Conditions over several waitpoints, signals and senders.

use ff_core::backend::signals::SignalEffect::{
    AppendedToWaitpoint, AppendedToWaitpointDuplicate, ResumeConditionSatisfied, SignalIgnoredMatcherFailed,
    SignalIgnoredNotInCondition,
};
use ff_core::backend::signals::{DeliverSignalArgs, SignalEffect};
use ff_core::backend::suspension::{CountKind, ResumeCondition, SignalMatcher, SuspendArgs};
use ff_core::ids::SignalId;
use ff_core::state::PublicState;

use crate::suspension::fixtures::*;
use crate::{World, cases};

cases!["signals":
    all_of_needs_every_member,
    the_order_of_signals_makes_no_difference,
    any_of_needs_one,
    a_count_of_waitpoints_needs_distinct_ones,
    a_count_of_signals_needs_distinct_ids,
    a_count_of_sources_needs_distinct_senders,
    a_count_with_a_name_ignores_other_names,
    two_counts_do_not_feed_each_other,
    one_signal_may_count_at_several_places,
    a_signal_for_a_waitpoint_outside_the_condition_is_ignored,
    a_composite_with_an_operator_inside_waits_for_one,
    conditions_may_be_nested,
];

/// Sends signals `(key, name, source)` and gives what each did.
async fn run(world: &World, parked: &Parked, signals: &[(&str, &str, &str)]) -> Vec<SignalEffect> {
    let mut effects = Vec::new();
    for (key, name, source) in signals {
        let mut args = parked.signal_at(key, name);
        args.source_type = "user".into();
        args.source_identity = (*source).into();
        effects.push(deliver(world, args).await);
    }
    effects
}

async fn all_of_needs_every_member(world: World) {
    let condition = all([single("a", "x"), single("b", "x"), single("c", "x")]);
    let parked = parked_on(&world, &["a", "b", "c"], condition).await;
    let effects =
        run(&world, &parked, &[("a", "x", ""), ("b", "no", ""), ("a", "x", ""), ("b", "x", ""), ("c", "x", "")]);
    assert_eq!(
        effects.await,
        [
            AppendedToWaitpoint,
            SignalIgnoredMatcherFailed,
            AppendedToWaitpointDuplicate,
            AppendedToWaitpoint,
            ResumeConditionSatisfied
        ]
    );
    assert_eq!(world.state(parked.id).await, PublicState::Waiting);
}

async fn the_order_of_signals_makes_no_difference(world: World) {
    seed(&world).await;
    let signals = [("a", "x", "ann"), ("b", "y", "bob"), ("b", "z", "cid")];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (id, handle) = world.claim_one().await;
        let condition = all([single("a", "x"), count(2, CountKind::DistinctSources, &["b"])]);
        let args = asking(&world, vec![fresh(&world, "a"), fresh(&world, "b")], condition);
        let parked = park_with(&world, id, handle, args).await;
        let effects = run(&world, &parked, &order.map(|at| signals[at])).await;
        assert_eq!(effects, [AppendedToWaitpoint, AppendedToWaitpoint, ResumeConditionSatisfied], "{order:?}");
        let handle = world.claim().await.expect("resumed");
        world.backend.complete(&handle, None).await.unwrap();
    }
}

async fn any_of_needs_one(world: World) {
    let parked = parked_on(&world, &["a", "b"], count(1, CountKind::DistinctWaitpoints, &["a", "b"])).await;
    assert_eq!(run(&world, &parked, &[("b", "x", "")]).await, [ResumeConditionSatisfied]);
}

async fn a_count_of_waitpoints_needs_distinct_ones(world: World) {
    let keys = ["a", "b", "c"];
    let parked = parked_on(&world, &keys, count(2, CountKind::DistinctWaitpoints, &keys)).await;
    let effects = run(&world, &parked, &[("a", "x", "1"), ("a", "y", "2"), ("c", "x", "1")]).await;
    assert_eq!(effects, [AppendedToWaitpoint, AppendedToWaitpointDuplicate, ResumeConditionSatisfied]);
}

async fn a_count_of_signals_needs_distinct_ids(world: World) {
    let parked = parked_on(&world, &["a", "b"], count(2, CountKind::DistinctSignals, &["a", "b"])).await;
    let id = SignalId::from_uuid(world.uuid());
    let same = |key| DeliverSignalArgs { signal_id: Some(id), ..parked.signal_at(key, "x") };
    assert_eq!(deliver(&world, same("a")).await, AppendedToWaitpoint);
    assert_eq!(deliver(&world, same("b")).await, AppendedToWaitpointDuplicate, "one id, though two waitpoints");
    assert_eq!(deliver(&world, parked.signal_at("a", "x")).await, ResumeConditionSatisfied);
}

async fn a_count_of_sources_needs_distinct_senders(world: World) {
    let parked = parked_on(&world, &["a", "b"], count(3, CountKind::DistinctSources, &["a", "b"])).await;
    let effects = run(
        &world,
        &parked,
        &[("a", "x", "ann"), ("b", "x", "ann"), ("a", "x", ""), ("a", "y", ""), ("b", "x", "bob")],
    );
    assert_eq!(
        effects.await,
        [
            AppendedToWaitpoint,
            AppendedToWaitpointDuplicate,
            AppendedToWaitpoint,
            AppendedToWaitpointDuplicate,
            ResumeConditionSatisfied
        ]
    );
}

async fn a_count_with_a_name_ignores_other_names(world: World) {
    let condition = ResumeCondition::Count {
        n: 2,
        count_kind: CountKind::DistinctSignals,
        matcher: Some(SignalMatcher::by_name("vote")),
        waitpoints: vec!["a".into()],
    };
    let parked = parked_on(&world, &["a"], condition).await;
    let effects = run(&world, &parked, &[("a", "noise", ""), ("a", "vote", ""), ("a", "vote", "")]).await;
    assert_eq!(effects, [SignalIgnoredMatcherFailed, AppendedToWaitpoint, ResumeConditionSatisfied]);
}

async fn two_counts_do_not_feed_each_other(world: World) {
    let condition = all([count(2, CountKind::DistinctSources, &["a"]), count(2, CountKind::DistinctSources, &["b"])]);
    let parked = parked_on(&world, &["a", "b"], condition).await;
    let effects =
        run(&world, &parked, &[("a", "x", "ann"), ("b", "x", "bob"), ("a", "x", "bob"), ("b", "x", "ann")]).await;
    assert_eq!(effects, [AppendedToWaitpoint, AppendedToWaitpoint, AppendedToWaitpoint, ResumeConditionSatisfied]);
}

async fn one_signal_may_count_at_several_places(world: World) {
    let condition = all([single("a", "x"), any("a"), count(1, CountKind::DistinctSources, &["a"])]);
    let parked = parked_on(&world, &["a"], condition).await;
    assert_eq!(run(&world, &parked, &[("a", "x", "")]).await, [ResumeConditionSatisfied]);
    assert_eq!(observed(&world, &parked.handle).await, ["x"]);
}

async fn a_signal_for_a_waitpoint_outside_the_condition_is_ignored(world: World) {
    // With one binding the condition may name other keys, which nobody can signal.
    let parked = parked_on(&world, &["a"], all([any("b")])).await;
    assert_eq!(run(&world, &parked, &[("a", "x", "")]).await, [SignalIgnoredNotInCondition]);
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
}

async fn a_composite_with_an_operator_inside_waits_for_one(world: World) {
    let timeout_at = Some(world.now().plus(1000));
    let condition = all([any("a"), ResumeCondition::OperatorOnly {}, ResumeCondition::TimeoutOnly {}]);
    let args = SuspendArgs { timeout_at, ..asking(&world, vec![fresh(&world, "a")], condition) };
    let parked = parked(&world, args).await;
    assert_eq!(run(&world, &parked, &[("a", "x", "")]).await, [AppendedToWaitpoint]);
    assert_eq!(world.state(parked.id).await, PublicState::Suspended);
}

async fn conditions_may_be_nested(world: World) {
    let inner = all([single("a", "x"), all([single("b", "y"), count(2, CountKind::DistinctSources, &["c"])])]);
    let parked = parked_on(&world, &["a", "b", "c"], all([inner, single("c", "last")])).await;
    let signals = [("c", "x", "ann"), ("b", "y", ""), ("a", "x", ""), ("c", "x", "bob")];
    assert_eq!(run(&world, &parked, &signals).await, [AppendedToWaitpoint; 4]);
    assert_eq!(run(&world, &parked, &[("c", "last", "ann")]).await, [ResumeConditionSatisfied]);
}
