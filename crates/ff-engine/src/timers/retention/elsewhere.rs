//! What other families keep of an execution: ledgers of budgets, admissions of quotas.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::Result;
use ff_core::partition::Partition;

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Execution, Ledger};
use crate::scheduler::admission::free;
use crate::scheduler::slots::Because;
use crate::store::{Op, Store, Tx};
use crate::verbs::list_of;

/// Forgets an execution everywhere but in its own partition. What was spent stays spent.
pub(super) async fn forget<S: Store>(engine: &Engine<S>, execution: &Execution) -> Result<()> {
    loop {
        let bounds = Bounds::first(engine.settings.slice);
        let ledgers: Vec<Ledger> = list_of(&engine.store, Index::SpendingOf(execution.id), bounds).await?;
        if ledgers.is_empty() {
            break;
        }
        let mut by_home: BTreeMap<Partition, Vec<Key>> = BTreeMap::new();
        for ledger in ledgers {
            let key = Key::ledger(ledger.home, ledger.budget, ledger.execution);
            by_home.entry(ledger.home).or_default().push(key);
        }
        for (home, keys) in by_home {
            engine.run(DropLedgers { home, keys }).await?;
        }
    }
    for quota in &execution.quota_policy_ids {
        free(engine, *quota, execution.id, Because::Settled(execution.epoch)).await?;
    }
    Ok(())
}

struct DropLedgers {
    home: Partition,
    keys: Vec<Key>,
}

#[async_trait]
impl Op for DropLedgers {
    type Out = ();

    fn home(&self) -> Partition {
        self.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        self.keys.iter().for_each(|key| tx.delete(key.clone()));
        Ok(())
    }
}
