//! What crossing a limit does to the executions attached to a budget.

use ff_core::backend::budgets::{CreateBudgetArgs, ReportUsageResult};
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger};
use ff_core::handle::HandleKind;
use ff_core::ids::BudgetId;
use ff_core::state::{BlockingReason, EligibilityState, PublicState};

use super::{attached_to, create, limits, report};
use crate::cases;
use crate::expect::contention;
use crate::harness::Damage;
use crate::world::World;

cases!["budgets":
    a_breach_that_blocks_leaves_everything_running,
    cancel_all_cancels_whatever_is_attached,
    cancel_pending_spares_who_is_running,
    suspend_takes_the_work_from_its_worker,
    a_suspended_attempt_goes_on_when_a_person_resumes_it,
    suspend_holds_what_is_claimable_until_the_budget_opens,
    a_breach_concerns_only_what_is_attached,
    a_breach_reaches_every_attached_execution,
    a_damaged_execution_does_not_spare_the_others_a_breach,
    a_damaged_execution_does_not_keep_the_others_behind_a_budget,
    a_soft_breach_acts_when_the_limit_is_crossed,
    a_soft_breach_acts_once_per_period,
    a_warning_only_counts,
];

async fn acting(world: &World, on_hard_limit: &str) -> BudgetId {
    create(world, CreateBudgetArgs { on_hard_limit: on_hard_limit.into(), ..limits(world) }).await
}

async fn breach(world: &World, budget: BudgetId) {
    let answer = report(world, budget, [("usd", 11)]).await;
    assert!(matches!(answer, ReportUsageResult::HardBreach { .. }), "{answer:?}");
    world.run_due().await;
}

async fn a_breach_that_blocks_leaves_everything_running(world: World) {
    let budget = acting(&world, "block").await;
    let (running, _) = world.claim_one_with(&attached_to(&[budget])).await;
    world.create_with(&attached_to(&[budget])).await;
    breach(&world, budget).await;
    assert_eq!(world.state(running).await, PublicState::Active);
    assert!(world.claim().await.is_some(), "what was refused used nothing");
}

async fn cancel_all_cancels_whatever_is_attached(world: World) {
    let budget = acting(&world, "cancel_all").await;
    let (running, handle) = world.claim_one_with(&attached_to(&[budget])).await;
    let waiting = world.create_with(&attached_to(&[budget])).await;
    breach(&world, budget).await;
    assert_eq!(world.state(running).await, PublicState::Cancelled);
    assert_eq!(world.state(waiting).await, PublicState::Cancelled);
    contention(world.backend.complete(&handle, None).await, "execution_not_active");
}

async fn cancel_pending_spares_who_is_running(world: World) {
    let budget = acting(&world, "cancel_pending").await;
    let (running, handle) = world.claim_one_with(&attached_to(&[budget])).await;
    let waiting = world.create_with(&attached_to(&[budget])).await;
    breach(&world, budget).await;
    assert_eq!(world.state(waiting).await, PublicState::Cancelled);
    assert_eq!(world.state(running).await, PublicState::Active);
    world.backend.complete(&handle, None).await.unwrap();
}

async fn suspend_takes_the_work_from_its_worker(world: World) {
    let budget = acting(&world, "suspend").await;
    let (running, handle) = world.claim_one_with(&attached_to(&[budget])).await;

    breach(&world, budget).await;

    let info = world.backend.read_execution_info(running).await.unwrap().unwrap();
    assert_eq!(info.public_state, PublicState::Suspended);
    assert_eq!(info.state_vector.blocking_reason, BlockingReason::WaitingForBudget);
    contention(world.backend.renew(&handle).await, "execution_not_active");
    contention(world.backend.complete(&handle, None).await, "execution_not_active");
}

async fn a_suspended_attempt_goes_on_when_a_person_resumes_it(world: World) {
    let budget = acting(&world, "suspend").await;
    let (running, _) = world.claim_one_with(&attached_to(&[budget])).await;
    breach(&world, budget).await;
    world.pass(365 * 24 * 3_600_000).await;
    assert_eq!(world.state(running).await, PublicState::Suspended);

    let resume = ResumeExecutionArgs::new(running, ResumeTrigger::Operator);
    world.backend.resume_execution(resume).await.unwrap();

    let handle = world.claim().await.expect("it is claimable again");
    assert_eq!(handle.kind, HandleKind::Resumed);
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(world.backend.read_total_attempt_count(running).await.unwrap(), 1);
}

async fn suspend_holds_what_is_claimable_until_the_budget_opens(world: World) {
    let budget = acting(&world, "suspend").await;
    let waiting = world.create_with(&attached_to(&[budget])).await;

    breach(&world, budget).await;

    let info = world.backend.read_execution_info(waiting).await.unwrap().unwrap();
    assert_eq!(info.public_state, PublicState::RateLimited);
    assert_eq!(info.state_vector.eligibility_state, EligibilityState::BlockedByBudget);
    assert!(world.claim().await.is_none());
    world.backend.reset_budget(budget).await.unwrap();
    world.run_due().await;
    assert!(world.claim().await.is_some());
}

async fn a_breach_concerns_only_what_is_attached(world: World) {
    let (budget, other) = (acting(&world, "cancel_all").await, acting(&world, "cancel_all").await);
    let plain = world.create().await;
    let elsewhere = world.create_with(&attached_to(&[other])).await;
    let mine = world.create_with(&attached_to(&[other, budget])).await;
    breach(&world, budget).await;
    assert_eq!(world.state(plain).await, PublicState::Waiting);
    assert_eq!(world.state(elsewhere).await, PublicState::Waiting);
    assert_eq!(world.state(mine).await, PublicState::Cancelled);
}

async fn a_breach_reaches_every_attached_execution(world: World) {
    let budget = acting(&world, "suspend").await;
    let mut attached = Vec::new();
    for _ in 0..230 {
        attached.push(world.create_with(&attached_to(&[budget])).await);
    }
    breach(&world, budget).await;
    for id in &attached {
        assert_eq!(world.state(*id).await, PublicState::RateLimited);
    }
    world.backend.reset_budget(budget).await.unwrap();
    world.run_due().await;
    for id in &attached {
        assert_eq!(world.state(*id).await, PublicState::Waiting);
    }
}

async fn a_soft_breach_acts_when_the_limit_is_crossed(world: World) {
    let budget = create(&world, CreateBudgetArgs { on_soft_limit: "cancel_pending".into(), ..limits(&world) }).await;
    let waiting = world.create_with(&attached_to(&[budget])).await;
    report(&world, budget, [("usd", 8)]).await;
    world.run_due().await;
    assert_eq!(world.state(waiting).await, PublicState::Waiting);
    report(&world, budget, [("usd", 1)]).await;
    world.run_due().await;
    assert_eq!(world.state(waiting).await, PublicState::Cancelled);
}

async fn a_soft_breach_acts_once_per_period(world: World) {
    let budget = create(&world, CreateBudgetArgs { on_soft_limit: "cancel_pending".into(), ..limits(&world) }).await;
    report(&world, budget, [("calls", 4)]).await;
    world.run_due().await;
    let later = world.create_with(&attached_to(&[budget])).await;
    report(&world, budget, [("calls", 1)]).await;
    world.run_due().await;
    assert_eq!(world.state(later).await, PublicState::Waiting);

    world.backend.reset_budget(budget).await.unwrap();
    report(&world, budget, [("calls", 4)]).await;
    world.run_due().await;
    assert_eq!(world.state(later).await, PublicState::Cancelled);
}

async fn a_warning_only_counts(world: World) {
    let budget = create(&world, limits(&world)).await;
    let waiting = world.create_with(&attached_to(&[budget])).await;
    report(&world, budget, [("usd", 9)]).await;
    world.run_due().await;
    assert_eq!(world.state(waiting).await, PublicState::Waiting);
    assert_eq!(super::status(&world, budget).await.soft_breach_count, 1);
}

async fn a_damaged_execution_does_not_spare_the_others_a_breach(world: World) {
    let budget = acting(&world, "cancel_all").await;
    let attached = [0; 3].map(|_| attached_to(&[budget]));
    let mut ids = Vec::new();
    for policy in &attached {
        ids.push(world.create_with(policy).await);
    }
    world.damage(Damage::Execution(ids[1])).await;
    breach(&world, budget).await;
    for id in [ids[0], ids[2]] {
        assert_eq!(world.state(id).await, PublicState::Cancelled);
    }
}

async fn a_damaged_execution_does_not_keep_the_others_behind_a_budget(world: World) {
    let budget = acting(&world, "suspend").await;
    let first = world.create_with(&attached_to(&[budget])).await;
    let second = world.create_with(&attached_to(&[budget])).await;
    breach(&world, budget).await;
    world.damage(Damage::Execution(first)).await;
    world.backend.reset_budget(budget).await.unwrap();
    world.run_due().await;
    assert_eq!(world.state(second).await, PublicState::Waiting);
}
