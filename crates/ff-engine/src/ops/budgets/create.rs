//! create_budget.

use ff_core::Result;
use ff_core::backend::budgets::{CreateBudgetArgs, CreateBudgetResult};
use ff_core::partition::Partition;
use ff_core::rules::budgets::{BudgetDefinition, check_create, next_reset_at};

use super::{Attach, bind};
use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Budget, BudgetPeriod};
use crate::store::{Op, Store, Tx};

/// Creates a budget, then attaches it to its scope. One that exists is attached as it was defined.
pub(super) async fn create<S: Store>(engine: &Engine<S>, args: CreateBudgetArgs) -> Result<CreateBudgetResult> {
    let definition = check_create(&args)?;
    let home = engine.counts().of_budget(args.budget_id);
    let (budget, is_new) = engine.run(Create { home, args, definition }).await?;
    bind(engine, &budget.namespace, &budget.scope, Attach::Budget(budget.id)).await?;
    let budget_id = budget.id;
    Ok(if is_new {
        CreateBudgetResult::Created { budget_id }
    } else {
        CreateBudgetResult::AlreadySatisfied { budget_id }
    })
}

struct Create {
    home: Partition,
    args: CreateBudgetArgs,
    definition: BudgetDefinition,
}

#[async_trait::async_trait]
impl Op for Create {
    /// The budget as it is stored, and whether it is new.
    type Out = (Budget, bool);

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<(Budget, bool)> {
        let id = self.args.budget_id;
        if let Some(found) = tx.get::<Budget>(Key::budget(self.home, id)).await? {
            return Ok((found, false));
        }
        let now = tx.now();
        let next_reset_at = next_reset_at(now, self.args.reset_interval_ms);
        let budget = Budget {
            home: self.home,
            id,
            namespace: self.args.namespace.clone(),
            scope: self.definition.scope.clone(),
            scope_id: self.args.scope_id.clone(),
            on_hard_limit: self.definition.on_hard_limit,
            on_soft_limit: self.definition.on_soft_limit,
            hard_limits: self.definition.limits.hard.clone(),
            soft_limits: self.definition.limits.soft.clone(),
            reset_interval_ms: self.args.reset_interval_ms,
            created_at: now,
            period: BudgetPeriod { next_reset_at, ..BudgetPeriod::default() },
        };
        tx.put(budget.clone());
        Ok((budget, true))
    }
}
