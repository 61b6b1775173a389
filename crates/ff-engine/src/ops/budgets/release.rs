//! release_budget.

use ff_core::Result;
use ff_core::backend::budgets::ReleaseBudgetArgs;
use ff_core::ids::{BudgetId, ExecutionId};
use ff_core::partition::Partition;
use ff_core::rules::budgets;
use uuid::Uuid;

use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Budget, Continuation, ContinuationWork, Gate, Ledger};
use crate::store::{Op, Store, Tx};
use crate::timers::gates;

/// Takes back what an execution recorded, and lets in who waits for it.
pub(super) async fn release<S: Store>(engine: &Engine<S>, args: ReleaseBudgetArgs) -> Result<()> {
    let ReleaseBudgetArgs { budget_id: budget, execution_id: execution } = args;
    let home = engine.counts().of_budget(budget);
    let opening = gates::opening(engine, Gate::Budget(budget)).await?;
    if let Some(continuation) = engine.run(Release { home, budget, execution, opening }).await? {
        gates::run_at_once(engine, continuation).await;
    }
    Ok(())
}

/// The work of letting in who waits for a budget; nothing while it is used up.
pub(super) fn open(tx: &mut dyn Tx, budget: &Budget, opening: Option<Uuid>) -> Option<Continuation> {
    let id = opening.filter(|_| budget.closed_by().is_none())?;
    let work = ContinuationWork::OpenBudget { budget: budget.id };
    let continuation = Continuation { home: budget.home, id, work, after: None, due_at: tx.now() };
    tx.put(continuation.clone());
    Some(continuation)
}

struct Release {
    home: Partition,
    budget: BudgetId,
    execution: ExecutionId,
    opening: Option<Uuid>,
}

#[async_trait::async_trait]
impl Op for Release {
    type Out = Option<Continuation>;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::budget(self.home, self.budget), Key::ledger(self.home, self.budget, self.execution)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Option<Continuation>> {
        let key = Key::ledger(self.home, self.budget, self.execution);
        let Some(ledger) = tx.get::<Ledger>(key.clone()).await? else { return Ok(None) };
        tx.delete(key);
        let found = tx.get::<Budget>(Key::budget(self.home, self.budget)).await?;
        let Some(mut budget) = found else { return Ok(None) };
        let ledger = budgets::Ledger { generation: ledger.generation, amounts: ledger.spent };
        let lowered = budgets::release(&budget.period.usage, budget.period.generation, &ledger);
        if lowered.is_empty() {
            return Ok(None);
        }
        budget.period.usage.extend(lowered);
        tx.put(budget.clone());
        Ok(open(tx, &budget, self.opening))
    }
}
