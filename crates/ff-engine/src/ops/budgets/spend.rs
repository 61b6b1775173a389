//! report_usage, report_usage_admin, record_spend: one way to add usage.

use ff_core::backend::budgets::{Amounts, BreachAction, ReportUsageResult};
use ff_core::error::Entity;
use ff_core::fault::{Fault, is_on};
use ff_core::handle::{Handle, HandlePayload};
use ff_core::ids::{AttemptIndex, BudgetId, ExecutionId, Namespace};
use ff_core::partition::Partition;
use ff_core::rules::budgets::{self, USAGE_DEDUP_MS, UsageDecision, decide_usage};
use ff_core::rules::fence::{Presented, check_full};
use ff_core::{EngineError, Result};
use uuid::Uuid;

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::stored_ownership;
use crate::records::{
    AttemptUsage, Budget, Continuation, ContinuationWork, Dedup, DedupScope, DedupValue, Fence, Ledger,
};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// The owner of a lease that holds now. Only read: a report that races the loss of its lease may count.
pub(super) async fn owner<S: Store>(engine: &Engine<S>, handle: &Handle) -> Result<HandlePayload> {
    let payload = engine.open_handle(handle)?;
    let fence: Option<Fence> = read_one(&engine.store, Key::fence(payload.execution_id)).await?;
    let fence = fence.ok_or(EngineError::not_found(Entity::Execution))?;
    let presented = Presented::Fenced { fence: payload.fence(), attempt_index: Some(payload.attempt_index) };
    check_full(&stored_ownership(&fence), presented, engine.store.now().await?)?;
    Ok(payload)
}

/// Adds to what an attempt is known to have used. Best effort: the budget is what counts.
pub(super) async fn attribute<S: Store>(
    engine: &Engine<S>,
    execution: ExecutionId,
    index: AttemptIndex,
    deltas: Amounts,
) {
    if !deltas.is_empty() {
        let _ = engine.run(Attribute { execution, index, deltas }).await;
    }
}

struct Attribute {
    execution: ExecutionId,
    index: AttemptIndex,
    deltas: Amounts,
}

#[async_trait::async_trait]
impl Op for Attribute {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        // A purge may have been faster; what is gone gets no usage.
        if tx.get::<Fence>(Key::fence(self.execution)).await?.is_none() {
            return Ok(());
        }
        let found = tx.get::<AttemptUsage>(Key::attempt_usage(self.execution, self.index)).await?;
        let mut usage = found.unwrap_or_else(|| AttemptUsage {
            execution: self.execution,
            index: self.index,
            used: Amounts::new(),
        });
        for (dimension, delta) in &self.deltas {
            let used = usage.used.entry(dimension.clone()).or_default();
            *used = used.saturating_add(*delta).min(budgets::AMOUNT_MAX);
        }
        tx.put(usage);
        Ok(())
    }
}

/// Adds usage to a budget: all of it, or nothing.
pub(super) struct Spend {
    pub(super) home: Partition,
    pub(super) budget: BudgetId,
    pub(super) deltas: Amounts,
    pub(super) key: Option<String>,
    /// Whose namespace the budget must be of; any, when an operator reports.
    pub(super) namespace: Option<Namespace>,
    /// To whom it is attributed, so that it can be released.
    pub(super) spender: Option<ExecutionId>,
}

/// Which limit was crossed; names the bulk work that follows, so that it exists once per budget.
#[derive(Clone, Copy)]
enum Limit {
    Hard,
    Soft,
}

impl Spend {
    pub(super) fn of<S: Store>(engine: &Engine<S>, budget: BudgetId, deltas: Amounts, key: Option<String>) -> Self {
        Self { home: engine.counts().of_budget(budget), budget, deltas, key, namespace: None, spender: None }
    }

    pub(super) async fn apply<S: Store>(self, engine: &Engine<S>) -> Result<ReportUsageResult> {
        engine.run(self).await
    }

    async fn load(&self, tx: &mut dyn Tx) -> Result<Budget> {
        let found = tx.get::<Budget>(Key::budget(self.home, self.budget)).await?;
        found
            .filter(|budget| self.namespace.as_ref().is_none_or(|namespace| *namespace == budget.namespace))
            .ok_or(EngineError::not_found(Entity::Budget))
    }

    fn dedup_key(&self) -> Option<Key> {
        let scope = DedupScope::Usage { budget: self.budget, key: self.key.clone()? };
        Some(Key::dedup(self.home, scope))
    }

    async fn is_known(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(key) = self.dedup_key() else { return Ok(false) };
        let live = tx.get::<Dedup>(key).await?.is_some_and(|dedup| dedup.is_live(tx.now()));
        Ok(live && !is_on(Fault::UsageDedupSkipped))
    }

    fn remember(&self, tx: &mut dyn Tx) {
        if let Some(key) = &self.key {
            tx.put(Dedup {
                home: self.home,
                scope: DedupScope::Usage { budget: self.budget, key: key.clone() },
                value: DedupValue::Applied,
                expires_at: tx.now().plus(USAGE_DEDUP_MS),
            });
        }
    }

    async fn attribute(&self, tx: &mut dyn Tx, generation: u64) -> Result<()> {
        let Some(execution) = self.spender else { return Ok(()) };
        let found = tx.get::<Ledger>(Key::ledger(self.home, self.budget, execution)).await?;
        let before = found.map(|ledger| budgets::Ledger { generation: ledger.generation, amounts: ledger.spent });
        let after = before.unwrap_or_default().with(generation, &self.deltas);
        tx.put(Ledger {
            home: self.home,
            budget: self.budget,
            execution,
            generation: after.generation,
            spent: after.amounts,
        });
        Ok(())
    }

    /// Leaves the work of acting on the attached executions. Work that is under way already is not started over.
    async fn act(&self, tx: &mut dyn Tx, action: BreachAction, limit: Limit) -> Result<()> {
        if matches!(action, BreachAction::Block | BreachAction::Warn) {
            return Ok(());
        }
        let salt = match limit {
            Limit::Hard => 1,
            Limit::Soft => 2,
        };
        let id = Uuid::from_u128(self.budget.uuid().as_u128() ^ salt);
        if tx.get::<Continuation>(Key::continuation(self.home, id)).await?.is_none() {
            let work = ContinuationWork::Breach { budget: self.budget, action };
            tx.put(Continuation { home: self.home, id, work, after: None, due_at: tx.now() });
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Op for Spend {
    type Out = ReportUsageResult;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        [Key::budget(self.home, self.budget)].into_iter().chain(self.dedup_key()).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<ReportUsageResult> {
        let mut budget = self.load(tx).await?;
        if self.is_known(tx).await? {
            return Ok(ReportUsageResult::AlreadyApplied);
        }
        let decision = decide_usage(&budget.limits(), &budget.period.usage, &self.deltas)?;
        let answer = decision.answer();
        match decision {
            UsageDecision::Refuse(breach) => {
                budget.period.breach_count += 1;
                budget.period.last_breach = Some((tx.now(), breach.dimension));
                self.act(tx, budget.on_hard_limit, Limit::Hard).await?;
            }
            UsageDecision::Add { usage, soft } => {
                if let Some(breach) = soft {
                    budget.period.soft_breach_count += 1;
                    let before = budget.period.usage.get(&breach.dimension).copied().unwrap_or(0);
                    if before <= breach.limit {
                        self.act(tx, budget.on_soft_limit, Limit::Soft).await?;
                    }
                }
                budget.period.usage.extend(usage);
                self.attribute(tx, budget.period.generation).await?;
                self.remember(tx);
            }
        }
        tx.put(budget);
        Ok(answer)
    }
}
