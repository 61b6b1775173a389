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
use crate::verbs::{list_of, read_one};

/// Ledgers that one transaction adds up; those of a budget with more are added up before it.
const LEDGERS_MAX: usize = 1000;

/// How often to add up the ledgers of a budget that changes meanwhile.
const TRIES: usize = 3;

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
                let checked = check(engine, home, budget.id).await;
                counts.errors += u32::from(!matches!(checked, Ok(true)));
            }
        }
    }
}

/// Compares a budget with its ledgers; says whether it could.
async fn check<S: Store>(engine: &Engine<S>, home: Partition, id: BudgetId) -> Result<bool> {
    if engine.run(CheckBudget { home, id }).await? {
        return Ok(true);
    }
    for _ in 0..TRIES {
        let Some(seen) = read_one::<Budget, _>(&engine.store, Key::budget(home, id)).await? else { return Ok(true) };
        let proven = add_up(engine, &seen).await?;
        if engine.run(RaiseUsage { seen, proven }).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What all ledgers of a budget prove, page by page.
async fn add_up<S: Store>(engine: &Engine<S>, budget: &Budget) -> Result<BTreeMap<String, u64>> {
    let mut proven = BTreeMap::new();
    let mut after = None;
    loop {
        let bounds = Bounds::first(LEDGERS_MAX).after(after);
        let page: Vec<Ledger> = list_of(&engine.store, Index::LedgersOf(budget.home, budget.id), bounds).await?;
        let Some(last) = page.last() else { return Ok(proven) };
        after = Some(Position::by(last.execution.to_bytes()));
        add(&mut proven, &page, budget.period.generation);
    }
}

/// Raises usage to what the ledgers prove, unless the budget changed since: every ledger that counts changes with its budget, so the
/// sum is true as long as the budget is the same. Says whether it was.
struct RaiseUsage {
    seen: Budget,
    proven: BTreeMap<String, u64>,
}

#[async_trait]
impl Op for RaiseUsage {
    type Out = bool;

    fn home(&self) -> Partition {
        self.seen.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::budget(self.seen.home, self.seen.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(stored) = tx.get::<Budget>(Key::budget(self.seen.home, self.seen.id)).await? else { return Ok(true) };
        let is_same = stored == self.seen;
        if is_same {
            raise(tx, &stored, &self.proven);
        }
        Ok(is_same)
    }
}

/// Raises usage to what is proven, and marks a breach that nobody marked.
fn raise(tx: &mut dyn Tx, stored: &Budget, proven: &BTreeMap<String, u64>) {
    let mut budget = stored.clone();
    for (dimension, proven) in proven {
        let usage = budget.period.usage.entry(dimension.clone()).or_default();
        *usage = (*usage).max(*proven);
    }
    let over = budget.hard_limits.iter().find(|(dimension, limit)| {
        **limit > 0 && budget.period.usage.get(*dimension).is_some_and(|usage| usage > limit)
    });
    if let (Some((dimension, _)), None) = (over, &budget.period.last_breach) {
        budget.period.last_breach = Some((tx.now(), dimension.clone()));
    }
    if budget != *stored {
        tx.put(budget);
    }
}

/// Checks a budget in one transaction, unless it has too many ledgers for that. Says whether it could.
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
        let is_complete = ledgers.len() < LEDGERS_MAX;
        if is_complete {
            let mut proven = BTreeMap::new();
            add(&mut proven, &ledgers, stored.period.generation);
            raise(tx, &stored, &proven);
        }
        Ok(is_complete)
    }
}

fn add(sums: &mut BTreeMap<String, u64>, ledgers: &[Ledger], generation: u64) {
    for ledger in ledgers.iter().filter(|ledger| ledger.generation == generation) {
        for (dimension, amount) in &ledger.spent {
            let sum: &mut u64 = sums.entry(dimension.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::backend::budgets::CreateBudgetArgs;
    use ff_core::backend::{Budgets, Maintenance};
    use ff_core::ids::ExecutionId;
    use ff_core::partition::PartitionKey;
    use uuid::Uuid;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Settings;
    use crate::memory::MemoryStore;

    struct Write(Vec<Ledger>);

    #[async_trait]
    impl Op for Write {
        type Out = ();

        fn home(&self) -> Partition {
            self.0[0].home
        }

        async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
            self.0.iter().cloned().for_each(|ledger| tx.put(ledger));
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_budget_with_thousands_of_ledgers_is_checked_too() {
        let store = MemoryStore::new(Arc::new(ManualClock::at(TimestampMs(1_000))));
        let engine = Engine::open(store, Settings::default()).await.unwrap();
        let budget = BudgetId::from_uuid(Uuid::from_u128(1));
        let args = CreateBudgetArgs {
            budget_id: budget,
            namespace: "acme".parse().unwrap(),
            scope_type: "policy".to_owned(),
            scope_id: String::new(),
            on_hard_limit: "block".to_owned(),
            on_soft_limit: "warn".to_owned(),
            reset_interval_ms: 0,
            dimensions: vec!["tokens".to_owned()],
            hard_limits: vec![0],
            soft_limits: vec![0],
        };
        engine.create_budget(args).await.unwrap();
        let home = engine.counts().of_budget(budget);
        let ledger = |n: usize| Ledger {
            home,
            budget,
            execution: ExecutionId::new(0, Uuid::from_u128(n as u128)),
            generation: 0,
            spent: [("tokens".to_owned(), 2)].into(),
        };
        engine.run(Write((0..2 * LEDGERS_MAX + 1).map(ledger).collect())).await.unwrap();

        let counts = engine.reconcile_budget_counters(&PartitionKey::from(home), TimestampMs(1_000)).await.unwrap();

        assert_eq!(counts, ReconcileCounts { processed: 1, errors: 0 });
        let checked: Budget = read_one(&engine.store, Key::budget(home, budget)).await.unwrap().unwrap();
        assert_eq!(checked.period.usage["tokens"], 2 * (2 * LEDGERS_MAX as u64 + 1));
    }
}
