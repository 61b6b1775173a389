//! Asking for admission and undoing it.

use ff_core::backend::quotas::{
    CheckAdmissionArgs, CheckAdmissionResult, ReleaseAdmissionArgs, ReleaseAdmissionResult,
};
use ff_core::error::ValidationKind;
use ff_core::ids::{ExecutionId, QuotaPolicyId};

use super::{asking, at_once, check};
use crate::cases;
use crate::expect::invalid;
use crate::world::World;

cases!["quotas":
    an_execution_is_admitted_once,
    a_full_window_admits_nobody_and_says_when_to_ask_again,
    a_window_slides,
    a_denial_counts_nothing,
    dimensions_have_windows_of_their_own,
    an_unnamed_dimension_is_the_default_one,
    a_reached_cap_admits_nobody,
    the_rate_speaks_before_the_cap,
    without_bounds_everybody_is_admitted,
    an_unknown_policy_admits_by_the_limits_asked_for,
    jitter_only_prolongs_the_wait,
    a_released_admission_frees_its_slot,
    a_released_admission_leaves_the_window,
    releasing_twice_frees_one_slot,
    releasing_nothing_succeeds,
    bad_questions_are_refused,
    an_admission_without_a_claim_gives_its_slot_back,
    an_admission_ends_with_its_window_where_only_a_rate_is_asked,
    windows_with_many_old_entries_still_tell_the_truth,
];

fn policy(world: &World) -> QuotaPolicyId {
    QuotaPolicyId::from_uuid(world.uuid())
}

fn rate(execution_id: ExecutionId, rate_limit: u64) -> CheckAdmissionArgs {
    CheckAdmissionArgs { rate_limit, ..asking(execution_id) }
}

fn cap(execution_id: ExecutionId, concurrency_cap: u64) -> CheckAdmissionArgs {
    CheckAdmissionArgs { concurrency_cap, window_seconds: 0, ..asking(execution_id) }
}

async fn release(world: &World, quota_policy_id: QuotaPolicyId, execution_id: ExecutionId) {
    let args = ReleaseAdmissionArgs { quota_policy_id, execution_id };
    let answer = world.backend.release_admission(args).await.unwrap();
    assert_eq!(answer, ReleaseAdmissionResult::Released);
}

async fn an_execution_is_admitted_once(world: World) {
    let quota = policy(&world);
    let id = world.execution_id();
    let args = CheckAdmissionArgs { concurrency_cap: 1, ..rate(id, 1) };
    assert_eq!(check(&world, quota, args).await, CheckAdmissionResult::Admitted);
    assert_eq!(check(&world, quota, args).await, CheckAdmissionResult::AlreadyAdmitted);
}

async fn a_full_window_admits_nobody_and_says_when_to_ask_again(world: World) {
    let quota = policy(&world);
    check(&world, quota, rate(world.execution_id(), 2)).await;
    world.advance(10_000);
    check(&world, quota, rate(world.execution_id(), 2)).await;
    world.advance(5_000);
    let answer = check(&world, quota, rate(world.execution_id(), 2)).await;
    assert_eq!(answer, CheckAdmissionResult::RateExceeded { retry_after_ms: 45_000 });
}

async fn a_window_slides(world: World) {
    let quota = policy(&world);
    check(&world, quota, rate(world.execution_id(), 2)).await;
    world.advance(30_000);
    check(&world, quota, rate(world.execution_id(), 2)).await;

    world.advance(29_999);
    let early = check(&world, quota, rate(world.execution_id(), 2)).await;
    assert_eq!(early, CheckAdmissionResult::RateExceeded { retry_after_ms: 1 });
    world.advance(1);
    assert_eq!(check(&world, quota, rate(world.execution_id(), 2)).await, CheckAdmissionResult::Admitted);
    let full = check(&world, quota, rate(world.execution_id(), 2)).await;
    assert_eq!(full, CheckAdmissionResult::RateExceeded { retry_after_ms: 30_000 });
}

async fn a_denial_counts_nothing(world: World) {
    let quota = policy(&world);
    check(&world, quota, rate(world.execution_id(), 1)).await;
    for _ in 0..5 {
        let denied = check(&world, quota, rate(world.execution_id(), 1)).await;
        assert_eq!(denied, CheckAdmissionResult::RateExceeded { retry_after_ms: 60_000 });
    }
    world.advance(60_000);
    assert_eq!(check(&world, quota, rate(world.execution_id(), 1)).await, CheckAdmissionResult::Admitted);
}

async fn dimensions_have_windows_of_their_own(world: World) {
    let quota = policy(&world);
    for dimension in ["tokens", "calls"] {
        let args = rate(world.execution_id(), 1);
        let answer = world.backend.check_admission(quota, dimension, args).await.unwrap();
        assert_eq!(answer, CheckAdmissionResult::Admitted);
    }
    let args = rate(world.execution_id(), 1);
    let full = world.backend.check_admission(quota, "calls", args).await.unwrap();
    assert!(matches!(full, CheckAdmissionResult::RateExceeded { .. }));
}

async fn an_unnamed_dimension_is_the_default_one(world: World) {
    let quota = policy(&world);
    check(&world, quota, rate(world.execution_id(), 1)).await;
    let args = rate(world.execution_id(), 1);
    let full = world.backend.check_admission(quota, "default", args).await.unwrap();
    assert!(matches!(full, CheckAdmissionResult::RateExceeded { .. }));
}

async fn a_reached_cap_admits_nobody(world: World) {
    let quota = policy(&world);
    for _ in 0..2 {
        assert_eq!(check(&world, quota, cap(world.execution_id(), 2)).await, CheckAdmissionResult::Admitted);
    }
    let answer = check(&world, quota, cap(world.execution_id(), 2)).await;
    assert_eq!(answer, CheckAdmissionResult::ConcurrencyExceeded);
    assert_eq!(check(&world, quota, cap(world.execution_id(), 3)).await, CheckAdmissionResult::Admitted);
}

async fn the_rate_speaks_before_the_cap(world: World) {
    let quota = policy(&world);
    let both = |id| CheckAdmissionArgs { concurrency_cap: 1, ..rate(id, 1) };
    check(&world, quota, both(world.execution_id())).await;
    let answer = check(&world, quota, both(world.execution_id())).await;
    assert!(matches!(answer, CheckAdmissionResult::RateExceeded { .. }));
}

async fn without_bounds_everybody_is_admitted(world: World) {
    let quota = policy(&world);
    for _ in 0..5 {
        let args = CheckAdmissionArgs { window_seconds: 0, ..asking(world.execution_id()) };
        assert_eq!(check(&world, quota, args).await, CheckAdmissionResult::Admitted);
    }
}

async fn an_unknown_policy_admits_by_the_limits_asked_for(world: World) {
    let unknown = policy(&world);
    assert_eq!(world.backend.read_quota_policy_limits(unknown).await.unwrap(), None);
    assert_eq!(check(&world, unknown, cap(world.execution_id(), 1)).await, CheckAdmissionResult::Admitted);
    let second = check(&world, unknown, cap(world.execution_id(), 1)).await;
    assert_eq!(second, CheckAdmissionResult::ConcurrencyExceeded);
}

async fn jitter_only_prolongs_the_wait(world: World) {
    let quota = policy(&world);
    check(&world, quota, rate(world.execution_id(), 1)).await;
    for _ in 0..20 {
        let args = CheckAdmissionArgs { jitter_ms: Some(500), ..rate(world.execution_id(), 1) };
        let CheckAdmissionResult::RateExceeded { retry_after_ms } = check(&world, quota, args).await else {
            panic!("the window is full");
        };
        assert!((60_000..=60_500).contains(&retry_after_ms), "{retry_after_ms}");
    }
}

async fn a_released_admission_frees_its_slot(world: World) {
    let quota = policy(&world);
    let first = world.execution_id();
    check(&world, quota, cap(first, 1)).await;
    release(&world, quota, first).await;
    assert_eq!(check(&world, quota, cap(world.execution_id(), 1)).await, CheckAdmissionResult::Admitted);
}

async fn a_released_admission_leaves_the_window(world: World) {
    let quota = policy(&world);
    let first = world.execution_id();
    check(&world, quota, rate(first, 1)).await;
    release(&world, quota, first).await;
    assert_eq!(check(&world, quota, rate(world.execution_id(), 1)).await, CheckAdmissionResult::Admitted);
}

async fn releasing_twice_frees_one_slot(world: World) {
    let quota = policy(&world);
    let (first, second) = (world.execution_id(), world.execution_id());
    check(&world, quota, cap(first, 2)).await;
    check(&world, quota, cap(second, 2)).await;
    release(&world, quota, first).await;
    release(&world, quota, first).await;
    assert_eq!(check(&world, quota, cap(world.execution_id(), 2)).await, CheckAdmissionResult::Admitted);
    let full = check(&world, quota, cap(world.execution_id(), 2)).await;
    assert_eq!(full, CheckAdmissionResult::ConcurrencyExceeded);
}

async fn releasing_nothing_succeeds(world: World) {
    let quota = at_once(&world, 1).await;
    release(&world, quota, world.execution_id()).await;
    release(&world, policy(&world), world.execution_id()).await;
    check(&world, quota, cap(world.execution_id(), 1)).await;
    let full = check(&world, quota, cap(world.execution_id(), 1)).await;
    assert_eq!(full, CheckAdmissionResult::ConcurrencyExceeded);
}

async fn bad_questions_are_refused(world: World) {
    let quota = policy(&world);
    let id = world.execution_id();
    let beyond = i64::MAX.unsigned_abs() + 1;
    let bad = [
        CheckAdmissionArgs { window_seconds: 0, ..rate(id, 1) },
        CheckAdmissionArgs { window_seconds: beyond, ..rate(id, 1) },
        rate(id, beyond),
        cap(id, beyond),
        CheckAdmissionArgs { jitter_ms: Some(beyond), ..rate(id, 1) },
        rate(ExecutionId::new(u16::MAX, world.uuid()), 1),
    ];
    for args in bad {
        let answer = world.backend.check_admission(quota, "", args).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
    for dimension in ["a\tb".to_owned(), "d".repeat(257)] {
        let answer = world.backend.check_admission(quota, &dimension, rate(id, 1)).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
    assert_eq!(check(&world, quota, rate(id, 1)).await, CheckAdmissionResult::Admitted);
}

async fn an_admission_without_a_claim_gives_its_slot_back(world: World) {
    let quota = policy(&world);
    check(&world, quota, cap(world.execution_id(), 1)).await;
    world.pass(59_999).await;
    let early = check(&world, quota, cap(world.execution_id(), 1)).await;
    assert_eq!(early, CheckAdmissionResult::ConcurrencyExceeded);
    world.pass(1).await;
    assert_eq!(check(&world, quota, cap(world.execution_id(), 1)).await, CheckAdmissionResult::Admitted);
}

async fn an_admission_ends_with_its_window_where_only_a_rate_is_asked(world: World) {
    let quota = policy(&world);
    let id = world.execution_id();
    check(&world, quota, rate(id, 1)).await;
    world.pass(59_999).await;
    assert_eq!(check(&world, quota, rate(id, 1)).await, CheckAdmissionResult::AlreadyAdmitted);
    world.pass(60_000).await;
    assert_eq!(check(&world, quota, rate(id, 1)).await, CheckAdmissionResult::Admitted);
}

async fn windows_with_many_old_entries_still_tell_the_truth(world: World) {
    let quota = policy(&world);
    for _ in 0..150 {
        assert_eq!(check(&world, quota, rate(world.execution_id(), 150)).await, CheckAdmissionResult::Admitted);
    }
    world.advance(60_000);
    for _ in 0..2 {
        assert_eq!(check(&world, quota, rate(world.execution_id(), 2)).await, CheckAdmissionResult::Admitted);
    }
    let full = check(&world, quota, rate(world.execution_id(), 2)).await;
    assert_eq!(full, CheckAdmissionResult::RateExceeded { retry_after_ms: 60_000 });
}
