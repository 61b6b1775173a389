//! Budgets: limits, usage, spending.

mod bind;
mod create;
mod release;
pub(crate) mod reset;
mod spend;

use ff_core::backend::Budgets;
use ff_core::backend::budgets::{
    BudgetStatus, BudgetUsageAndLimits, CreateBudgetArgs, CreateBudgetResult, RecordSpendArgs, ReleaseBudgetArgs,
    ReportUsageAdminArgs, ReportUsageResult, ResetBudgetResult, UsageDimensions,
};
use ff_core::error::Entity;
use ff_core::handle::Handle;
use ff_core::ids::{BudgetId, check_free_string};
use ff_core::rules::budgets::{admin_deltas, spend_deltas, usage_deltas};
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::Budget;
use crate::store::Store;
use crate::verbs::read_one;

pub(crate) use bind::{Attach, bind};
use spend::Spend;

impl<S: Store> Engine<S> {
    fn budget_key(&self, id: BudgetId) -> Key {
        Key::budget(self.counts().of_budget(id), id)
    }

    async fn budget(&self, id: BudgetId) -> Result<Option<Budget>> {
        read_one(&self.store, self.budget_key(id)).await
    }
}

/// A dedup key as it counts: an empty one is none.
fn dedup_key(key: Option<String>) -> Result<Option<String>> {
    let key = key.filter(|key| !key.is_empty());
    if let Some(key) = &key {
        check_free_string("dedup_key", key)?;
    }
    Ok(key)
}

#[async_trait::async_trait]
impl<S: Store> Budgets for Engine<S> {
    async fn create_budget(&self, args: CreateBudgetArgs) -> Result<CreateBudgetResult> {
        create::create(self, args).await
    }

    async fn report_usage(
        &self,
        handle: &Handle,
        budget_id: BudgetId,
        dimensions: UsageDimensions,
    ) -> Result<ReportUsageResult> {
        let deltas = usage_deltas(&dimensions)?;
        let key = dedup_key(dimensions.dedup_key)?;
        let owner = spend::owner(self, handle).await?;
        let op = Spend { namespace: Some(owner.namespace), ..Spend::of(self, budget_id, deltas.clone(), key) };
        let answer = op.apply(self).await?;
        if matches!(answer, ReportUsageResult::Ok | ReportUsageResult::SoftBreach { .. }) {
            spend::attribute(self, owner.execution_id, owner.attempt_index, deltas).await;
        }
        Ok(answer)
    }

    async fn report_usage_admin(&self, budget_id: BudgetId, args: ReportUsageAdminArgs) -> Result<ReportUsageResult> {
        let deltas = admin_deltas(&args)?;
        let key = dedup_key(args.dedup_key)?;
        Spend::of(self, budget_id, deltas, key).apply(self).await
    }

    async fn record_spend(&self, args: RecordSpendArgs) -> Result<ReportUsageResult> {
        let deltas = spend_deltas(&args.deltas)?;
        let key = dedup_key(Some(args.idempotency_key))?;
        self.check_partition(args.execution_id)?;
        if deltas.is_empty() {
            return Ok(ReportUsageResult::Ok);
        }
        let op = Spend { spender: Some(args.execution_id), ..Spend::of(self, args.budget_id, deltas, key) };
        op.apply(self).await
    }

    async fn release_budget(&self, args: ReleaseBudgetArgs) -> Result<()> {
        release::release(self, args).await
    }

    async fn reset_budget(&self, budget_id: BudgetId) -> Result<ResetBudgetResult> {
        reset::reset(self, budget_id).await
    }

    async fn get_budget_status(&self, budget_id: BudgetId) -> Result<BudgetStatus> {
        let budget = self.budget(budget_id).await?.ok_or(EngineError::not_found(Entity::Budget))?;
        Ok(status(budget))
    }

    async fn read_budget_usage_and_limits(&self, budget_id: BudgetId) -> Result<BudgetUsageAndLimits> {
        let numbers = |budget: Budget| BudgetUsageAndLimits {
            hard_limits: budget.hard_limits,
            soft_limits: budget.soft_limits,
            usage: budget.period.usage,
        };
        Ok(self.budget(budget_id).await?.map(numbers).unwrap_or_default())
    }
}

fn status(budget: Budget) -> BudgetStatus {
    let Budget { period, .. } = budget;
    let (last_breach_at, last_breach_dim) = period.last_breach.unzip();
    BudgetStatus {
        budget_id: budget.id,
        namespace: budget.namespace,
        scope_type: budget.scope.scope_type(),
        scope_id: budget.scope_id,
        on_hard_limit: budget.on_hard_limit,
        on_soft_limit: budget.on_soft_limit,
        usage: period.usage,
        hard_limits: budget.hard_limits,
        soft_limits: budget.soft_limits,
        breach_count: period.breach_count,
        soft_breach_count: period.soft_breach_count,
        last_breach_at,
        last_breach_dim,
        reset_interval_ms: budget.reset_interval_ms,
        reset_count: period.generation,
        last_reset_at: period.last_reset_at,
        next_reset_at: period.next_reset_at,
        created_at: budget.created_at,
    }
}
