//! Budgets that never reset are checked against their ledgers.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::backend::maintenance::ReconcileCounts;
use ff_core::ids::BudgetId;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use super::PAGE;
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Budget, Ledger};
use crate::store::{Op, Store, Tx};
use crate::verbs::list_of;

/// Ledgers that one transaction can add up; a budget with more is left as it is.
const LEDGERS_MAX: usize = 1000;

/// Looks at every budget of a partition.
pub(super) async fn reconcile<S: Store>(
    engine: &Engine<S>,
    home: Partition,
    _now: TimestampMs,
) -> Result<ReconcileCounts> {
    let mut counts = ReconcileCounts::default();
    let mut after = None;
    loop {
        let bounds = Bounds::first(PAGE).after(after);
        let page: Vec<Budget> = list_of(&engine.store, Index::BudgetsIn(home), bounds).await?;
        let Some(last) = page.last() else { return Ok(counts) };
        after = Some(Position::by(*last.id.uuid().as_bytes()));
        for budget in page {
            counts.processed += 1;
            if budget.reset_interval_ms == 0 {
                let checked = engine.run(CheckBudget { home, id: budget.id }).await;
                counts.errors += u32::from(!matches!(checked, Ok(true)));
            }
        }
    }
}

/// Raises usage to what the ledgers prove, and marks a breach that nobody marked. Says whether it could.
struct CheckBudget {
    home: Partition,
    id: BudgetId,
}

#[async_trait]
impl Op for CheckBudget {
    type Out = bool;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::budget(self.home, self.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(stored) = tx.get::<Budget>(Key::budget(self.home, self.id)).await? else { return Ok(true) };
        let index = Index::LedgersOf(self.home, self.id);
        let ledgers = tx.range_of::<Ledger>(index, Bounds::first(LEDGERS_MAX)).await?;
        let complete = ledgers.len() < LEDGERS_MAX;
        let mut budget = stored.clone();
        for (dimension, proven) in spent(&ledgers, budget.period.generation) {
            let usage = budget.period.usage.entry(dimension).or_default();
            *usage = (*usage).max(proven);
        }
        let over = budget.hard_limits.iter().find(|(dimension, limit)| {
            **limit > 0 && budget.period.usage.get(*dimension).is_some_and(|usage| usage > limit)
        });
        if let (Some((dimension, _)), None) = (over, &budget.period.last_breach) {
            budget.period.last_breach = Some((tx.now(), dimension.clone()));
        }
        if budget != stored {
            tx.put(budget);
        }
        Ok(complete)
    }
}

fn spent(ledgers: &[Ledger], generation: u64) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for ledger in ledgers.iter().filter(|ledger| ledger.generation == generation) {
        for (dimension, amount) in &ledger.spent {
            let sum: &mut u64 = sums.entry(dimension.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }
    sums
}
