//! What executions spent, and taking it back.

use std::collections::BTreeMap;

use ff_core::backend::budgets::{RecordSpendArgs, ReleaseBudgetArgs, ReportUsageResult};
use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::{BudgetId, ExecutionId};

use super::{amounts, create, limits, report, status, used};
use crate::cases;
use crate::expect::{invalid, not_found};
use crate::world::World;

cases!["budgets":
    recorded_spend_counts_and_can_be_released,
    releasing_twice_takes_back_once,
    releasing_nothing_succeeds,
    a_release_takes_back_only_what_that_execution_recorded,
    reported_usage_is_never_released,
    a_release_leaves_breach_marks_alone,
    usage_never_falls_below_zero,
    an_applied_spend_stays_applied_after_its_release,
    a_spend_without_deltas_does_nothing,
    a_spend_over_a_hard_limit_records_nothing,
    a_spend_over_a_soft_limit_is_recorded,
    a_repeated_spend_is_recorded_once,
    bad_spends_are_refused,
    an_unknown_budget_takes_no_spend,
];

fn spend<const N: usize>(
    budget_id: BudgetId,
    execution_id: ExecutionId,
    deltas: [(&str, u64); N],
    key: &str,
) -> RecordSpendArgs {
    RecordSpendArgs { budget_id, execution_id, deltas: amounts(deltas), idempotency_key: key.to_owned() }
}

async fn release(world: &World, budget_id: BudgetId, execution_id: ExecutionId) {
    world.backend.release_budget(ReleaseBudgetArgs { budget_id, execution_id }).await.unwrap();
}

async fn recorded_spend_counts_and_can_be_released(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    for n in [1, 2] {
        let answer = world.backend.record_spend(spend(budget, execution, [("usd", n), ("bytes", 5)], "")).await;
        assert_eq!(answer.unwrap(), ReportUsageResult::Ok);
    }
    assert_eq!((used(&world, budget, "usd").await, used(&world, budget, "bytes").await), (3, 10));

    release(&world, budget, execution).await;

    assert_eq!((used(&world, budget, "usd").await, used(&world, budget, "bytes").await), (0, 0));
}

async fn releasing_twice_takes_back_once(world: World) {
    let budget = create(&world, limits(&world)).await;
    let (one, other) = (world.execution_id(), world.execution_id());
    world.backend.record_spend(spend(budget, one, [("usd", 3)], "")).await.unwrap();
    world.backend.record_spend(spend(budget, other, [("usd", 4)], "")).await.unwrap();
    release(&world, budget, one).await;
    release(&world, budget, one).await;
    assert_eq!(used(&world, budget, "usd").await, 4);
}

async fn releasing_nothing_succeeds(world: World) {
    let budget = create(&world, limits(&world)).await;
    release(&world, budget, world.execution_id()).await;
    release(&world, BudgetId::from_uuid(world.uuid()), world.execution_id()).await;
}

async fn a_release_takes_back_only_what_that_execution_recorded(world: World) {
    let (budget, other_budget) = (create(&world, limits(&world)).await, create(&world, limits(&world)).await);
    let execution = world.execution_id();
    world.backend.record_spend(spend(budget, execution, [("usd", 3)], "")).await.unwrap();
    world.backend.record_spend(spend(other_budget, execution, [("usd", 2)], "")).await.unwrap();
    world.backend.record_spend(spend(budget, world.execution_id(), [("usd", 4)], "")).await.unwrap();

    release(&world, budget, execution).await;

    assert_eq!((used(&world, budget, "usd").await, used(&world, other_budget, "usd").await), (4, 2));
}

async fn reported_usage_is_never_released(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    report(&world, budget, [("usd", 4)]).await;
    world.backend.record_spend(spend(budget, execution, [("usd", 3)], "")).await.unwrap();
    release(&world, budget, execution).await;
    assert_eq!(used(&world, budget, "usd").await, 4);
}

async fn a_release_leaves_breach_marks_alone(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    world.backend.record_spend(spend(budget, execution, [("usd", 9)], "")).await.unwrap();
    world.backend.record_spend(spend(budget, execution, [("usd", 9)], "")).await.unwrap();
    release(&world, budget, execution).await;
    let status = status(&world, budget).await;
    assert_eq!((status.breach_count, status.soft_breach_count), (1, 1));
    assert_eq!(status.last_breach_dim.as_deref(), Some("usd"));
}

async fn usage_never_falls_below_zero(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    world.backend.record_spend(spend(budget, execution, [("usd", 5)], "")).await.unwrap();
    world.backend.reset_budget(budget).await.unwrap();
    report(&world, budget, [("usd", 3)]).await;

    release(&world, budget, execution).await;

    assert_eq!(used(&world, budget, "usd").await, 3, "spend of an earlier period is not taken from this one");
}

async fn an_applied_spend_stays_applied_after_its_release(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    world.backend.record_spend(spend(budget, execution, [("usd", 3)], "k")).await.unwrap();
    release(&world, budget, execution).await;
    let again = world.backend.record_spend(spend(budget, execution, [("usd", 3)], "k")).await.unwrap();
    assert_eq!(again, ReportUsageResult::AlreadyApplied);
    assert_eq!(used(&world, budget, "usd").await, 0);
}

async fn a_spend_without_deltas_does_nothing(world: World) {
    let budget = create(&world, limits(&world)).await;
    let before = status(&world, budget).await;
    for id in [budget, BudgetId::from_uuid(world.uuid())] {
        let answer = world.backend.record_spend(spend(id, world.execution_id(), [], "k")).await.unwrap();
        assert_eq!(answer, ReportUsageResult::Ok);
    }
    assert_eq!(status(&world, budget).await, before);
    let later = world.backend.record_spend(spend(budget, world.execution_id(), [("usd", 1)], "k")).await.unwrap();
    assert_eq!(later, ReportUsageResult::Ok, "its key was not taken");
}

async fn a_spend_over_a_hard_limit_records_nothing(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    report(&world, budget, [("usd", 6)]).await;
    let answer = world.backend.record_spend(spend(budget, execution, [("bytes", 1), ("usd", 5)], "")).await.unwrap();
    let breach = ReportUsageResult::HardBreach { dimension: "usd".into(), current_usage: 6, hard_limit: 10 };
    assert_eq!(answer, breach);
    release(&world, budget, execution).await;
    assert_eq!((used(&world, budget, "usd").await, used(&world, budget, "bytes").await), (6, 0));
}

async fn a_spend_over_a_soft_limit_is_recorded(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    let answer = world.backend.record_spend(spend(budget, execution, [("usd", 9)], "")).await.unwrap();
    assert_eq!(answer, ReportUsageResult::SoftBreach { dimension: "usd".into(), current_usage: 9, soft_limit: 8 });
    release(&world, budget, execution).await;
    assert_eq!(used(&world, budget, "usd").await, 0);
}

async fn a_repeated_spend_is_recorded_once(world: World) {
    let budget = create(&world, limits(&world)).await;
    let execution = world.execution_id();
    let send = || world.backend.record_spend(spend(budget, execution, [("usd", 2)], "k"));
    assert_eq!(send().await.unwrap(), ReportUsageResult::Ok);
    assert_eq!(send().await.unwrap(), ReportUsageResult::AlreadyApplied);
    assert_eq!(used(&world, budget, "usd").await, 2);
}

async fn bad_spends_are_refused(world: World) {
    let unknown = BudgetId::from_uuid(world.uuid());
    let execution = world.execution_id();
    let beyond = i64::MAX.unsigned_abs() + 1;
    let many: BTreeMap<String, u64> = (0..65).map(|n| (format!("d{n}"), 1)).collect();
    let bad = [
        spend(unknown, execution, [("", 1)], ""),
        spend(unknown, execution, [("usd", beyond)], ""),
        spend(unknown, execution, [("usd", 1)], "line\nbreak"),
        RecordSpendArgs { deltas: many, ..spend(unknown, execution, [], "") },
        spend(unknown, ExecutionId::new(u16::MAX, world.uuid()), [("usd", 1)], ""),
    ];
    for args in bad {
        invalid(world.backend.record_spend(args).await, ValidationKind::InvalidInput);
    }
}

async fn an_unknown_budget_takes_no_spend(world: World) {
    let unknown = BudgetId::from_uuid(world.uuid());
    let answer = world.backend.record_spend(spend(unknown, world.execution_id(), [("usd", 1)], "")).await;
    not_found(answer, Entity::Budget);
}
