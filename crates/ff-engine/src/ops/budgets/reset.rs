//! reset_budget, asked for or due.

use ff_core::backend::budgets::ResetBudgetResult;
use ff_core::error::Entity;
use ff_core::ids::BudgetId;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};
use uuid::Uuid;

use super::release::open;
use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Budget, Continuation, Gate};
use crate::store::{Op, Store, Tx};
use crate::timers::gates;

/// Starts a new period now.
pub(super) async fn reset<S: Store>(engine: &Engine<S>, budget: BudgetId) -> Result<ResetBudgetResult> {
    let reset = start_over(engine, budget, false).await?.ok_or(EngineError::not_found(Entity::Budget))?;
    Ok(ResetBudgetResult::Reset { next_reset_at: reset.period.next_reset_at })
}

/// Starts a new period if the running one is over; says whether it was.
pub(crate) async fn when_due<S: Store>(engine: &Engine<S>, budget: BudgetId) -> Result<bool> {
    Ok(start_over(engine, budget, true).await?.is_some())
}

async fn start_over<S: Store>(engine: &Engine<S>, budget: BudgetId, only_if_due: bool) -> Result<Option<Budget>> {
    let home = engine.counts().of_budget(budget);
    let opening = gates::opening(engine, Gate::Budget(budget)).await?;
    let Some((budget, opened)) = engine.run(Reset { home, budget, only_if_due, opening }).await? else {
        return Ok(None);
    };
    if let Some(continuation) = opened {
        gates::run_at_once(engine, continuation).await;
    }
    Ok(Some(budget))
}

struct Reset {
    home: Partition,
    budget: BudgetId,
    only_if_due: bool,
    opening: Option<Uuid>,
}

#[async_trait::async_trait]
impl Op for Reset {
    /// The budget after the reset, and the work of letting in who waits for it.
    type Out = Option<(Budget, Option<Continuation>)>;

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        let found = tx.get::<Budget>(Key::budget(self.home, self.budget)).await?;
        let Some(mut budget) = found else { return Ok(None) };
        let due = budget.period.next_reset_at.is_some_and(|at| at.is_due(tx.now()));
        if self.only_if_due && !due {
            return Ok(None);
        }
        budget.reset(tx.now());
        tx.put(budget.clone());
        let opened = open(tx, &budget, self.opening);
        Ok(Some((budget, opened)))
    }
}
