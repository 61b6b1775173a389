//! Limits on what executions may use, and what was used.

mod breaches;
mod claims;
mod definitions;
mod ledgers;
mod resets;
mod usage;

use ff_core::backend::budgets::{
    Amounts, BudgetStatus, CreateBudgetArgs, CreateBudgetResult, ReportUsageAdminArgs, ReportUsageResult,
};
use ff_core::ids::{BudgetId, Namespace};
use ff_core::policy::ExecutionPolicy;

use crate::Case;
use crate::world::World;

pub(crate) fn cases() -> Vec<Case> {
    [breaches::cases(), claims::cases(), definitions::cases(), ledgers::cases(), resets::cases(), usage::cases()]
        .into_iter()
        .flatten()
        .collect()
}

/// A budget of 10 `usd`, soft limit 8, and of any number of `calls`, soft limit 3; attached by id.
fn limits(world: &World) -> CreateBudgetArgs {
    CreateBudgetArgs {
        budget_id: BudgetId::from_uuid(world.uuid()),
        namespace: world.namespace(),
        scope_type: "policy".into(),
        scope_id: String::new(),
        on_hard_limit: "block".into(),
        on_soft_limit: "warn".into(),
        reset_interval_ms: 0,
        dimensions: vec!["usd".into(), "calls".into()],
        hard_limits: vec![10, 0],
        soft_limits: vec![8, 3],
    }
}

async fn create(world: &World, args: CreateBudgetArgs) -> BudgetId {
    match world.backend.create_budget(args).await.unwrap() {
        CreateBudgetResult::Created { budget_id } => budget_id,
        other @ CreateBudgetResult::AlreadySatisfied { .. } => panic!("expected a new budget, got {other:?}"),
    }
}

fn amounts<const N: usize>(pairs: [(&str, u64); N]) -> Amounts {
    pairs.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
}

fn admin<const N: usize>(pairs: [(&str, u64); N], dedup_key: Option<&str>) -> ReportUsageAdminArgs {
    ReportUsageAdminArgs {
        dimensions: pairs.iter().map(|(name, _)| (*name).to_owned()).collect(),
        deltas: pairs.iter().map(|(_, delta)| *delta).collect(),
        dedup_key: dedup_key.map(ToOwned::to_owned),
    }
}

async fn report<const N: usize>(world: &World, budget: BudgetId, pairs: [(&str, u64); N]) -> ReportUsageResult {
    world.backend.report_usage_admin(budget, admin(pairs, None)).await.unwrap()
}

async fn status(world: &World, budget: BudgetId) -> BudgetStatus {
    world.backend.get_budget_status(budget).await.unwrap()
}

async fn used(world: &World, budget: BudgetId, dimension: &str) -> u64 {
    status(world, budget).await.usage.get(dimension).copied().unwrap_or(0)
}

fn attached_to(budgets: &[BudgetId]) -> ExecutionPolicy {
    ExecutionPolicy { budget_ids: budgets.to_vec(), ..ExecutionPolicy::default() }
}

fn other_namespace() -> Namespace {
    Namespace::new("umbrella").unwrap()
}
