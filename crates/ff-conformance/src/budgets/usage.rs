//! Adding usage, by workers and by operators.

use ff_core::backend::budgets::{CreateBudgetArgs, ReportUsageAdminArgs, ReportUsageResult, UsageDimensions};
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::handle::{BackendTag, Handle, HandleOpaque};
use ff_core::ids::BudgetId;
use ff_core::state::OwnershipState;

use super::{admin, amounts, create, limits, other_namespace, report, status, used};
use crate::cases;
use crate::expect::{contention, invalid, not_found, state};
use crate::world::{LEASE_MS, World};

cases!["budgets":
    a_worker_reports_what_it_used,
    token_and_time_counts_go_under_their_own_names,
    a_report_that_would_exceed_a_hard_limit_adds_nothing,
    a_hard_limit_may_be_reached_exactly,
    a_soft_breach_is_added_and_told_with_usage_after,
    the_first_breached_dimension_by_name_is_told,
    a_dimension_without_limit_is_counted,
    a_dimension_given_twice_counts_twice,
    a_known_dedup_key_adds_nothing,
    an_empty_dedup_key_is_none,
    dedup_keys_are_known_per_budget,
    a_dedup_key_is_forgotten_after_a_day,
    a_refused_report_may_be_repeated_with_its_key,
    bad_reports_of_operators_are_refused,
    bad_reports_of_workers_are_refused,
    usage_never_goes_beyond_what_stores_hold,
    an_unknown_budget_takes_no_usage,
    a_report_after_the_end_is_refused,
    a_report_after_the_lease_ran_out_is_refused_and_marks_nothing,
    a_report_after_a_revocation_is_refused,
    a_report_of_an_earlier_owner_is_refused,
    bad_input_is_told_before_a_lost_lease,
    a_lost_lease_is_told_before_an_unknown_budget,
    a_budget_of_another_namespace_takes_no_reports,
    a_broken_handle_reports_nothing,
    reported_usage_is_attributed_to_the_attempt,
];

fn usd(amount: u64) -> UsageDimensions {
    UsageDimensions { custom: amounts([("usd", amount)]), ..UsageDimensions::default() }
}

fn keyed(amount: u64, key: &str) -> UsageDimensions {
    UsageDimensions { dedup_key: Some(key.to_owned()), ..usd(amount) }
}

async fn a_worker_reports_what_it_used(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, handle) = world.claim_one().await;

    assert_eq!(world.backend.report_usage(&handle, budget, usd(3)).await.unwrap(), ReportUsageResult::Ok);
    assert_eq!(world.backend.report_usage(&handle, budget, usd(2)).await.unwrap(), ReportUsageResult::Ok);

    assert_eq!(used(&world, budget, "usd").await, 5);
    let soft = world.backend.report_usage(&handle, budget, usd(4)).await.unwrap();
    assert_eq!(soft, ReportUsageResult::SoftBreach { dimension: "usd".into(), current_usage: 9, soft_limit: 8 });
}

async fn token_and_time_counts_go_under_their_own_names(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, handle) = world.claim_one().await;
    let tokens = UsageDimensions {
        input_tokens: 5,
        output_tokens: 0,
        wall_ms: Some(70),
        custom: amounts([("input_tokens", 2)]),
        dedup_key: None,
    };

    world.backend.report_usage(&handle, budget, tokens).await.unwrap();

    assert_eq!(status(&world, budget).await.usage, amounts([("input_tokens", 7), ("wall_ms", 70)]));
}

async fn a_report_that_would_exceed_a_hard_limit_adds_nothing(world: World) {
    let budget = create(&world, limits(&world)).await;
    report(&world, budget, [("usd", 6)]).await;
    world.advance(5);

    let answer = report(&world, budget, [("calls", 1), ("usd", 5)]).await;

    let breach = ReportUsageResult::HardBreach { dimension: "usd".into(), current_usage: 6, hard_limit: 10 };
    assert_eq!(answer, breach);
    let status = status(&world, budget).await;
    assert_eq!(status.usage.get("usd"), Some(&6));
    assert_eq!(status.usage.get("calls").copied().unwrap_or(0), 0);
    assert_eq!(status.breach_count, 1);
    assert_eq!((status.last_breach_at, status.last_breach_dim.as_deref()), (Some(world.now()), Some("usd")));
}

async fn a_hard_limit_may_be_reached_exactly(world: World) {
    let budget = create(&world, CreateBudgetArgs { soft_limits: vec![0, 0], ..limits(&world) }).await;
    assert_eq!(report(&world, budget, [("usd", 10)]).await, ReportUsageResult::Ok);
    let over = report(&world, budget, [("usd", 1)]).await;
    assert_eq!(over, ReportUsageResult::HardBreach { dimension: "usd".into(), current_usage: 10, hard_limit: 10 });
}

async fn a_soft_breach_is_added_and_told_with_usage_after(world: World) {
    let budget = create(&world, limits(&world)).await;
    assert_eq!(report(&world, budget, [("usd", 8)]).await, ReportUsageResult::Ok);

    let answer = report(&world, budget, [("usd", 1)]).await;

    assert_eq!(answer, ReportUsageResult::SoftBreach { dimension: "usd".into(), current_usage: 9, soft_limit: 8 });
    let status = status(&world, budget).await;
    assert_eq!((status.usage["usd"], status.soft_breach_count, status.breach_count), (9, 1, 0));
}

async fn the_first_breached_dimension_by_name_is_told(world: World) {
    let budget = create(&world, CreateBudgetArgs { hard_limits: vec![10, 5], ..limits(&world) }).await;
    let soft = report(&world, budget, [("usd", 9), ("calls", 4)]).await;
    assert_eq!(soft, ReportUsageResult::SoftBreach { dimension: "calls".into(), current_usage: 4, soft_limit: 3 });
    let hard = report(&world, budget, [("usd", 9), ("calls", 4)]).await;
    assert_eq!(hard, ReportUsageResult::HardBreach { dimension: "calls".into(), current_usage: 4, hard_limit: 5 });
}

async fn a_dimension_without_limit_is_counted(world: World) {
    let budget = create(&world, limits(&world)).await;
    assert_eq!(report(&world, budget, [("bytes", 1_000_000)]).await, ReportUsageResult::Ok);
    assert_eq!(used(&world, budget, "bytes").await, 1_000_000);
}

async fn a_dimension_given_twice_counts_twice(world: World) {
    let budget = create(&world, limits(&world)).await;
    report(&world, budget, [("usd", 2), ("usd", 3)]).await;
    assert_eq!(used(&world, budget, "usd").await, 5);
}

async fn a_known_dedup_key_adds_nothing(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, handle) = world.claim_one().await;
    let first = world.backend.report_usage(&handle, budget, keyed(3, "step 1")).await.unwrap();
    let again = world.backend.report_usage(&handle, budget, keyed(3, "step 1")).await.unwrap();
    let by_operator = world.backend.report_usage_admin(budget, admin([("usd", 9)], Some("step 1"))).await.unwrap();

    assert_eq!(first, ReportUsageResult::Ok);
    assert_eq!((again, by_operator), (ReportUsageResult::AlreadyApplied, ReportUsageResult::AlreadyApplied));
    assert_eq!(used(&world, budget, "usd").await, 3);
}

async fn an_empty_dedup_key_is_none(world: World) {
    let budget = create(&world, limits(&world)).await;
    for _ in 0..2 {
        let answer = world.backend.report_usage_admin(budget, admin([("usd", 1)], Some(""))).await.unwrap();
        assert_eq!(answer, ReportUsageResult::Ok);
    }
    assert_eq!(used(&world, budget, "usd").await, 2);
}

async fn dedup_keys_are_known_per_budget(world: World) {
    let (one, other) = (create(&world, limits(&world)).await, create(&world, limits(&world)).await);
    for budget in [one, other] {
        let answer = world.backend.report_usage_admin(budget, admin([("usd", 1)], Some("k"))).await.unwrap();
        assert_eq!(answer, ReportUsageResult::Ok);
    }
}

async fn a_dedup_key_is_forgotten_after_a_day(world: World) {
    let budget = create(&world, limits(&world)).await;
    let send = || world.backend.report_usage_admin(budget, admin([("usd", 1)], Some("k")));
    send().await.unwrap();
    world.pass(24 * 60 * 60 * 1000 - 1).await;
    assert_eq!(send().await.unwrap(), ReportUsageResult::AlreadyApplied);
    world.pass(1).await;
    assert_eq!(send().await.unwrap(), ReportUsageResult::Ok);
}

async fn a_refused_report_may_be_repeated_with_its_key(world: World) {
    let budget = create(&world, limits(&world)).await;
    report(&world, budget, [("usd", 6)]).await;
    let send = || world.backend.report_usage_admin(budget, admin([("usd", 5)], Some("k")));
    assert!(matches!(send().await.unwrap(), ReportUsageResult::HardBreach { .. }));
    assert!(matches!(send().await.unwrap(), ReportUsageResult::HardBreach { .. }));

    world.backend.reset_budget(budget).await.unwrap();

    assert_eq!(send().await.unwrap(), ReportUsageResult::Ok);
    assert_eq!(send().await.unwrap(), ReportUsageResult::AlreadyApplied);
}

async fn bad_reports_of_operators_are_refused(world: World) {
    let budget = create(&world, limits(&world)).await;
    let unequal = ReportUsageAdminArgs { dimensions: vec!["usd".into()], deltas: vec![], dedup_key: None };
    let beyond = i64::MAX.unsigned_abs() + 1;
    let long = "k".repeat(257);
    for args in [unequal, admin([("", 1)], None), admin([("usd", beyond)], None), admin([("usd", 1)], Some(&long))] {
        invalid(world.backend.report_usage_admin(budget, args).await, ValidationKind::InvalidInput);
    }
    let unknown = BudgetId::from_uuid(world.uuid());
    let both = world.backend.report_usage_admin(unknown, admin([("", 1)], None)).await;
    invalid(both, ValidationKind::InvalidInput);
    assert_eq!(used(&world, budget, "usd").await, 0);
}

async fn bad_reports_of_workers_are_refused(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, handle) = world.claim_one().await;
    let unnamed = UsageDimensions { custom: amounts([("", 1)]), ..UsageDimensions::default() };
    let huge = UsageDimensions { input_tokens: u64::MAX, ..UsageDimensions::default() };
    let many =
        UsageDimensions { custom: (0..65).map(|n| (format!("d{n}"), 1)).collect(), ..UsageDimensions::default() };
    for dimensions in [unnamed, huge, many, keyed(1, "line\nbreak")] {
        let answer = world.backend.report_usage(&handle, budget, dimensions).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
}

async fn usage_never_goes_beyond_what_stores_hold(world: World) {
    let budget = create(&world, limits(&world)).await;
    let most = i64::MAX.unsigned_abs();
    assert_eq!(report(&world, budget, [("bytes", most)]).await, ReportUsageResult::Ok);
    let more = world.backend.report_usage_admin(budget, admin([("bytes", 1)], None)).await;
    invalid(more, ValidationKind::InvalidInput);
    assert_eq!(used(&world, budget, "bytes").await, most);
}

async fn an_unknown_budget_takes_no_usage(world: World) {
    let (_, handle) = world.claim_one().await;
    let unknown = BudgetId::from_uuid(world.uuid());
    not_found(world.backend.report_usage(&handle, unknown, usd(1)).await, Entity::Budget);
    not_found(world.backend.report_usage_admin(unknown, admin([("usd", 1)], None)).await, Entity::Budget);
    not_found(world.backend.get_budget_status(unknown).await, Entity::Budget);
}

async fn a_report_after_the_end_is_refused(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    contention(world.backend.report_usage(&handle, budget, usd(1)).await, "execution_not_active");
    assert_eq!(used(&world, budget, "usd").await, 0);
}

async fn a_report_after_the_lease_ran_out_is_refused_and_marks_nothing(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (id, handle) = world.claim_one().await;
    world.advance(LEASE_MS);

    state(world.backend.report_usage(&handle, budget, usd(1)).await, StateKind::LeaseExpired);

    let info = world.backend.read_execution_info(id).await.unwrap().unwrap();
    assert_eq!(info.state_vector.ownership_state, OwnershipState::Leased);
    assert_eq!(used(&world, budget, "usd").await, 0);
}

async fn a_report_after_a_revocation_is_refused(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (id, handle) = world.claim_one().await;
    let args = RevokeLeaseArgs {
        execution_id: id,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "maintenance".into(),
    };
    world.backend.revoke_lease(args).await.unwrap();
    state(world.backend.report_usage(&handle, budget, usd(1)).await, StateKind::LeaseRevoked);
}

async fn a_report_of_an_earlier_owner_is_refused(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, first) = world.claim_one().await;
    world.pass(LEASE_MS).await;
    world.pass(1_000).await;
    let second = world.claim().await.expect("a lost execution is claimable again");

    state(world.backend.report_usage(&first, budget, usd(1)).await, StateKind::StaleLease);
    world.backend.report_usage(&second, budget, usd(2)).await.unwrap();

    assert_eq!(used(&world, budget, "usd").await, 2);
}

async fn bad_input_is_told_before_a_lost_lease(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    let unnamed = UsageDimensions { custom: amounts([("", 1)]), ..UsageDimensions::default() };
    let answer = world.backend.report_usage(&handle, budget, unnamed).await;
    invalid(answer, ValidationKind::InvalidInput);
}

async fn a_lost_lease_is_told_before_an_unknown_budget(world: World) {
    let (_, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    let unknown = BudgetId::from_uuid(world.uuid());
    contention(world.backend.report_usage(&handle, unknown, usd(1)).await, "execution_not_active");
}

async fn a_budget_of_another_namespace_takes_no_reports(world: World) {
    let args = CreateBudgetArgs { namespace: other_namespace(), ..limits(&world) };
    let foreign = create(&world, args).await;
    let (_, handle) = world.claim_one().await;
    not_found(world.backend.report_usage(&handle, foreign, usd(1)).await, Entity::Budget);
    assert_eq!(used(&world, foreign, "usd").await, 0);
}

async fn a_broken_handle_reports_nothing(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (_, handle) = world.claim_one().await;
    let bytes = handle.opaque.as_bytes();
    let mut altered = bytes.to_vec();
    *altered.last_mut().unwrap() ^= 1;
    let forged = Handle { opaque: HandleOpaque::new(altered), ..handle.clone() };
    let truncated = Handle { opaque: HandleOpaque::new(&bytes[..bytes.len() / 2]), ..handle.clone() };
    let other = if handle.backend == BackendTag::Sqlite { BackendTag::Postgres } else { BackendTag::Sqlite };
    let foreign = Handle { backend: other, ..handle.clone() };

    invalid(world.backend.report_usage(&forged, budget, usd(1)).await, ValidationKind::Corruption);
    invalid(world.backend.report_usage(&truncated, budget, usd(1)).await, ValidationKind::InvalidInput);
    invalid(world.backend.report_usage(&foreign, budget, usd(1)).await, ValidationKind::HandleFromOtherBackend);
    assert_eq!(used(&world, budget, "usd").await, 0);
}

async fn reported_usage_is_attributed_to_the_attempt(world: World) {
    let (one, other) = (create(&world, limits(&world)).await, create(&world, limits(&world)).await);
    let (id, handle) = world.claim_one().await;
    world.backend.report_usage(&handle, one, usd(3)).await.unwrap();
    world.backend.report_usage(&handle, other, usd(4)).await.unwrap();
    let refused = world.backend.report_usage(&handle, one, usd(90)).await.unwrap();
    assert!(matches!(refused, ReportUsageResult::HardBreach { .. }));

    let fields = world.backend.read_exec_core_fields(id, &["usage.usd"]).await.unwrap();

    assert_eq!(fields["usage.usd"].as_deref(), Some("7"));
}
