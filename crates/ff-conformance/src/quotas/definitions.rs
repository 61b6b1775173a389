//! Creating and reading quota policies.

use ff_core::backend::quotas::{CreateQuotaPolicyArgs, CreateQuotaPolicyResult, QuotaPolicyLimits};
use ff_core::error::ValidationKind;
use ff_core::ids::QuotaPolicyId;

use super::{create, unbounded};
use crate::cases;
use crate::expect::invalid;
use crate::world::World;

cases!["quotas":
    a_policy_keeps_its_numbers,
    a_policy_is_created_once_and_keeps_its_definition,
    a_rate_needs_a_window,
    a_cap_needs_no_window,
    a_scope_must_make_sense,
    numbers_that_some_store_cannot_hold_are_refused,
    bad_numbers_are_told_before_a_bad_specification,
    an_unknown_policy_has_no_limits,
];

async fn a_policy_keeps_its_numbers(world: World) {
    let args = CreateQuotaPolicyArgs {
        window_seconds: 60,
        max_requests_per_window: 5,
        max_concurrent: 2,
        jitter_ms: 250,
        ..unbounded(&world)
    };
    let id = create(&world, args).await;
    let limits = world.backend.read_quota_policy_limits(id).await.unwrap();
    let expected = QuotaPolicyLimits {
        max_requests_per_window: 5,
        requests_per_window_seconds: 60,
        active_concurrency_cap: 2,
        jitter_ms: 250,
    };
    assert_eq!(limits, Some(expected));
}

async fn a_policy_is_created_once_and_keeps_its_definition(world: World) {
    let args = CreateQuotaPolicyArgs { max_concurrent: 2, ..unbounded(&world) };
    let id = create(&world, args.clone()).await;
    let again = CreateQuotaPolicyArgs { max_concurrent: 9, ..args };
    let answer = world.backend.create_quota_policy(again).await.unwrap();
    assert_eq!(answer, CreateQuotaPolicyResult::AlreadySatisfied { quota_policy_id: id });
    let limits = world.backend.read_quota_policy_limits(id).await.unwrap().unwrap();
    assert_eq!(limits.active_concurrency_cap, 2);
}

async fn a_rate_needs_a_window(world: World) {
    let args = CreateQuotaPolicyArgs { max_requests_per_window: 5, ..unbounded(&world) };
    let id = args.quota_policy_id;
    invalid(world.backend.create_quota_policy(args).await, ValidationKind::InvalidQuotaSpec);
    assert_eq!(world.backend.read_quota_policy_limits(id).await.unwrap(), None);
}

async fn a_cap_needs_no_window(world: World) {
    let id = create(&world, CreateQuotaPolicyArgs { max_concurrent: 1, ..unbounded(&world) }).await;
    assert!(world.backend.read_quota_policy_limits(id).await.unwrap().is_some());
}

async fn a_scope_must_make_sense(world: World) {
    for (scope_type, scope_id) in
        [("", ""), ("planet", "earth"), ("lane", ""), ("tag", "team"), ("namespace", "umbrella")]
    {
        let args =
            CreateQuotaPolicyArgs { scope_type: scope_type.into(), scope_id: scope_id.into(), ..unbounded(&world) };
        invalid(world.backend.create_quota_policy(args).await, ValidationKind::InvalidQuotaSpec);
    }
}

async fn numbers_that_some_store_cannot_hold_are_refused(world: World) {
    let beyond = i64::MAX.unsigned_abs() + 1;
    let bad = [
        CreateQuotaPolicyArgs { window_seconds: beyond, ..unbounded(&world) },
        CreateQuotaPolicyArgs { window_seconds: 1, max_requests_per_window: beyond, ..unbounded(&world) },
        CreateQuotaPolicyArgs { max_concurrent: beyond, ..unbounded(&world) },
        CreateQuotaPolicyArgs { jitter_ms: beyond, ..unbounded(&world) },
    ];
    for args in bad {
        invalid(world.backend.create_quota_policy(args).await, ValidationKind::InvalidInput);
    }
}

async fn bad_numbers_are_told_before_a_bad_specification(world: World) {
    let args = CreateQuotaPolicyArgs { max_requests_per_window: u64::MAX, ..unbounded(&world) };
    invalid(world.backend.create_quota_policy(args).await, ValidationKind::InvalidInput);
}

async fn an_unknown_policy_has_no_limits(world: World) {
    let unknown = QuotaPolicyId::from_uuid(world.uuid());
    assert_eq!(world.backend.read_quota_policy_limits(unknown).await.unwrap(), None);
}
