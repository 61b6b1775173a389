//! Budgets: what work may use.

use ff_core::backend::budgets::{
    BreachAction, BudgetScope, BudgetStatus, CreateBudgetArgs, ReportUsageAdminArgs, ReportUsageResult,
};
use ff_core::ids::BudgetId;
use uuid::Uuid;

use super::Client;
use crate::error::Result;
use crate::task::millis;

/// A budget to create: what may be used, by whom, and what happens then.
#[derive(Clone, Debug)]
#[must_use = "a budget does nothing until it is created"]
pub struct Budget {
    id: BudgetId,
    scope: BudgetScope,
    on_breach: BreachAction,
    reset_every_ms: u64,
    limits: Vec<(String, u64, u64)>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}

impl Budget {
    /// A budget without limits, for tasks that [name it](crate::Task::budget).
    pub fn new() -> Self {
        Self {
            id: BudgetId::from_uuid(Uuid::now_v7()),
            scope: BudgetScope::Policy {},
            on_breach: BreachAction::Block,
            reset_every_ms: 0,
            limits: Vec::new(),
        }
    }

    /// At most this much of a dimension.
    pub fn limit(self, dimension: impl Into<String>, hard: u64) -> Self {
        self.limits(dimension, 0, hard)
    }

    /// A warning at `soft`, and at most `hard`; 0 means none.
    pub fn limits(mut self, dimension: impl Into<String>, soft: u64, hard: u64) -> Self {
        self.limits.push((dimension.into(), soft, hard));
        self
    }

    /// Who it is for, instead of those that name it.
    pub fn scope(mut self, scope: BudgetScope) -> Self {
        self.scope = scope;
        self
    }

    /// What happens when it is spent; new work waits unless said otherwise.
    pub const fn on_breach(mut self, action: BreachAction) -> Self {
        self.on_breach = action;
        self
    }

    /// Starts over again and again.
    pub fn reset_every(mut self, period: std::time::Duration) -> Self {
        self.reset_every_ms = millis(period);
        self
    }
}

impl Client {
    /// Creates a budget.
    ///
    /// # Errors
    /// When its dimensions or limits are malformed.
    pub async fn create_budget(&self, budget: Budget) -> Result<BudgetId> {
        let args = CreateBudgetArgs {
            budget_id: budget.id,
            namespace: self.namespace.clone(),
            scope_type: budget.scope.scope_type().as_str().to_owned(),
            scope_id: budget.scope.scope_id(),
            on_hard_limit: budget.on_breach.as_str().to_owned(),
            on_soft_limit: BreachAction::Warn.as_str().to_owned(),
            reset_interval_ms: budget.reset_every_ms,
            dimensions: budget.limits.iter().map(|(dimension, ..)| dimension.clone()).collect(),
            hard_limits: budget.limits.iter().map(|(.., hard)| *hard).collect(),
            soft_limits: budget.limits.iter().map(|(_, soft, _)| *soft).collect(),
        };
        self.backend.create_budget(args).await?;
        Ok(budget.id)
    }

    /// What was used of a budget, and what may be.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn budget(&self, budget: BudgetId) -> Result<BudgetStatus> {
        Ok(self.backend.get_budget_status(budget).await?)
    }

    /// Charges a budget from outside of any execution.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn charge(&self, budget: BudgetId, dimension: &str, amount: u64) -> Result<ReportUsageResult> {
        let args =
            ReportUsageAdminArgs { dimensions: vec![dimension.to_owned()], deltas: vec![amount], dedup_key: None };
        Ok(self.backend.report_usage_admin(budget, args).await?)
    }
}
