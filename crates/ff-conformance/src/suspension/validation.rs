//! Suspensions that make no sense are refused before anything is looked at.

use ff_core::backend::suspension::{CountKind, ResumeCondition, SignalMatcher, SuspendArgs, WaitpointBinding};
use ff_core::error::ValidationKind;
use ff_core::handle::{BackendTag, Handle};
use ff_core::ids::{ExecutionId, FenceTriple, WaitpointId};
use ff_core::state::PublicState;

use super::fixtures::*;
use crate::expect::invalid;
use crate::{World, cases};

cases!["suspension":
    a_suspend_needs_a_waitpoint,
    the_primary_key_is_the_one_a_single_condition_waits_on,
    additional_waitpoints_are_fresh_and_named,
    bound_and_referenced_keys_are_the_same,
    waiting_for_a_timeout_needs_one,
    a_signal_name_in_a_condition_is_not_empty,
    a_timeout_may_lie_ten_minutes_behind_the_clock_and_no_more,
    composite_conditions_have_a_shape,
    waitpoints_of_one_suspend_differ_in_id_and_key,
    texts_of_a_suspend_are_short_and_printable,
    a_suspend_binds_at_most_256_waitpoints,
    a_resume_delay_beyond_all_time_is_refused,
    a_bad_suspend_is_refused_before_its_handle_is_opened,
];

/// Both ways to suspend refuse the arguments with this code, and nothing happens.
async fn refused(world: &World, held: &(ExecutionId, Handle), args: SuspendArgs, code: &str) {
    let (id, handle) = held;
    let by_handle = invalid(world.backend.suspend(handle, args.clone()).await, ValidationKind::InvalidInput);
    let nobody = FenceTriple::NONE;
    let by_triple = invalid(world.backend.suspend_by_triple(*id, nobody, args).await, ValidationKind::InvalidInput);
    assert!(by_handle.starts_with(code), "expected {code}, got {by_handle}");
    assert_eq!(by_triple, by_handle, "told before the missing fence");
    assert_eq!(world.state(*id).await, PublicState::Active);
}

fn pending(world: &World) -> WaitpointBinding {
    WaitpointBinding::UsePending { waitpoint_id: WaitpointId::from_uuid(world.uuid()) }
}

async fn a_suspend_needs_a_waitpoint(world: World) {
    let held = held(&world).await;
    refused(&world, &held, asking(&world, vec![], any("a")), "waitpoints_empty").await;
}

async fn the_primary_key_is_the_one_a_single_condition_waits_on(world: World) {
    let held = held(&world).await;
    let args = asking(&world, vec![fresh(&world, "b")], any("a"));
    refused(&world, &held, args, "waitpoint_key_mismatch").await;
}

async fn additional_waitpoints_are_fresh_and_named(world: World) {
    let held = held(&world).await;
    let both = || all([any("a"), any("b")]);
    let args = asking(&world, vec![fresh(&world, "a"), pending(&world)], both());
    refused(&world, &held, args, "additional_waitpoint_binding_must_be_fresh").await;
    let args = asking(&world, vec![fresh(&world, "a"), fresh(&world, "")], both());
    refused(&world, &held, args, "additional_waitpoint_empty_key").await;
    let args = asking(&world, vec![fresh(&world, "")], ResumeCondition::OperatorOnly {});
    refused(&world, &held, args, "waitpoint_empty_key").await;
}

async fn bound_and_referenced_keys_are_the_same(world: World) {
    let held = held(&world).await;
    let two = || vec![fresh(&world, "a"), fresh(&world, "b")];
    let args = asking(&world, two(), all([any("a"), any("b"), any("c")]));
    refused(&world, &held, args, "referenced_waitpoint_key_missing_binding").await;
    let args = asking(&world, two(), all([any("a")]));
    refused(&world, &held, args, "extra_binding_not_referenced_by_condition").await;
}

async fn waiting_for_a_timeout_needs_one(world: World) {
    let held = held(&world).await;
    let args = asking(&world, vec![fresh(&world, "a")], ResumeCondition::TimeoutOnly {});
    refused(&world, &held, args.clone(), "timeout_only_without_deadline").await;
    let timed = SuspendArgs { timeout_at: Some(world.now().plus(1)), ..args };
    park_with(&world, held.0, held.1, timed).await;
}

async fn a_signal_name_in_a_condition_is_not_empty(world: World) {
    let held = held(&world).await;
    let args = asking(&world, vec![fresh(&world, "a")], single("a", ""));
    refused(&world, &held, args, "empty_signal_name").await;
}

async fn a_timeout_may_lie_ten_minutes_behind_the_clock_and_no_more(world: World) {
    let held = held(&world).await;
    let behind = |ms: i64| SuspendArgs { timeout_at: Some(ff_core::TimestampMs(world.now().0 - ms)), ..ask(&world) };
    refused(&world, &held, behind(600_001), "timeout_at_in_past").await;
    park_with(&world, held.0, held.1, behind(600_000)).await;
}

async fn composite_conditions_have_a_shape(world: World) {
    let held = held(&world).await;
    let deep = (0..5).fold(any("a"), |inner, _| all([inner]));
    let shapes = [
        (all([]), "allof_empty_members"),
        (count(0, CountKind::DistinctSignals, &["a"]), "count_n_zero"),
        (count(1, CountKind::DistinctSignals, &[]), "count_waitpoints_empty"),
        (count(2, CountKind::DistinctWaitpoints, &["a"]), "count_exceeds_waitpoint_set"),
        (count(2, CountKind::DistinctWaitpoints, &["a", "a"]), "count_exceeds_waitpoint_set"),
        (deep, "composite_depth_exceeded"),
    ];
    for (condition, code) in shapes {
        refused(&world, &held, asking(&world, vec![fresh(&world, "a")], condition), code).await;
    }
    let just_fits = all([all([all([count(9, CountKind::DistinctSources, &["a"])])])]);
    park_with(&world, held.0, held.1, asking(&world, vec![fresh(&world, "a")], just_fits)).await;
}

async fn waitpoints_of_one_suspend_differ_in_id_and_key(world: World) {
    let held = held(&world).await;
    let twice = fresh(&world, "a");
    let same_id = WaitpointBinding::Fresh { waitpoint_id: twice.waitpoint_id(), waitpoint_key: "b".into() };
    let args = asking(&world, vec![twice, same_id], all([any("a"), any("b")]));
    refused(&world, &held, args, "duplicate_waitpoint_id").await;
    let args = asking(&world, vec![fresh(&world, "a"), fresh(&world, "a")], all([any("a")]));
    refused(&world, &held, args, "duplicate_waitpoint_key").await;
}

async fn texts_of_a_suspend_are_short_and_printable(world: World) {
    let held = held(&world).await;
    for text in ["x".repeat(257), "line\nbreak".to_owned()] {
        let key = asking(&world, vec![fresh(&world, &text)], any(&text));
        refused(&world, &held, key, "waitpoint_key").await;
        let name = asking(&world, vec![fresh(&world, "a")], single("a", &text));
        refused(&world, &held, name, "signal_name").await;
        let pointer = SuspendArgs { continuation_metadata_pointer: Some(text.clone()), ..ask(&world) };
        refused(&world, &held, pointer, "continuation_metadata_pointer").await;
        let once = SuspendArgs { idempotency_key: Some(text.clone()), ..ask(&world) };
        refused(&world, &held, once, "idempotency_key").await;
    }
}

async fn a_suspend_binds_at_most_256_waitpoints(world: World) {
    let held = held(&world).await;
    let many = |n: usize| {
        let keys: Vec<String> = (0..n).map(|i| format!("k{i}")).collect();
        let bindings = keys.iter().map(|key| fresh(&world, key)).collect();
        let condition = ResumeCondition::Count {
            n: 1,
            count_kind: CountKind::DistinctSignals,
            matcher: Some(SignalMatcher::by_name("go")),
            waitpoints: keys,
        };
        asking(&world, bindings, condition)
    };
    refused(&world, &held, many(257), "too_many_waitpoints").await;
    let parked = park_with(&world, held.0, held.1, many(256)).await;
    deliver(&world, parked.signal_at("k255", "go")).await;
    let listed = ff_core::backend::signals::ListPendingWaitpointsArgs::new(parked.id);
    assert_eq!(world.backend.list_pending_waitpoints(listed).await.unwrap().entries, [], "all of them closed");
}

async fn a_resume_delay_beyond_all_time_is_refused(world: World) {
    let held = held(&world).await;
    let mut args = ask(&world);
    args.resume_policy.resume_delay_ms = Some(u64::MAX);
    refused(&world, &held, args, "resume_delay_ms").await;
}

async fn a_bad_suspend_is_refused_before_its_handle_is_opened(world: World) {
    let (_, handle) = held(&world).await;
    let foreign = Handle { backend: another(handle.backend), ..handle };
    let none = asking(&world, vec![], any("a"));
    assert_eq!(invalid(world.backend.suspend(&foreign, none).await, ValidationKind::InvalidInput), "waitpoints_empty");
    invalid(world.backend.suspend(&foreign, ask(&world)).await, ValidationKind::HandleFromOtherBackend);
}

fn another(tag: BackendTag) -> BackendTag {
    BackendTag::ALL.iter().copied().find(|other| *other != tag).expect("there are several")
}
