//! What other families keep of an execution: ledgers of budgets, admissions of quotas.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::Result;
use ff_core::partition::Partition;

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Admission, Execution, Ledger, QuotaUsage};
use crate::store::{Op, Store, Tx};
use crate::verbs::{list_of, read_one};

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
            engine.run(&DropLedgers { home, keys }).await?;
        }
    }
    for quota in &execution.quota_policy_ids {
        let home = engine.counts().of_quota(*quota);
        let key = Key::admission(home, *quota, execution.id);
        if let Some(admission) = read_one::<Admission, _>(&engine.store, key).await? {
            engine.run(&DropAdmission { admission }).await?;
        }
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

/// Drops an admission if it is still the one that was found, and frees the slot it holds.
pub(crate) struct DropAdmission {
    pub(crate) admission: Admission,
}

#[async_trait]
impl Op for DropAdmission {
    type Out = bool;

    fn home(&self) -> Partition {
        self.admission.home
    }

    fn prefetch(&self) -> Vec<Key> {
        let Admission { home, quota, execution, .. } = &self.admission;
        vec![Key::admission(*home, *quota, *execution), Key::quota_usage(*home, *quota)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Admission { home, quota, execution, .. } = &self.admission;
        let key = Key::admission(*home, *quota, *execution);
        if tx.get::<Admission>(key.clone()).await?.as_ref() != Some(&self.admission) {
            return Ok(false);
        }
        tx.delete(key);
        if self.admission.holds_slot
            && let Some(mut usage) = tx.get::<QuotaUsage>(Key::quota_usage(*home, *quota)).await?
        {
            usage.holders = usage.holders.saturating_sub(1);
            tx.put(usage);
        }
        Ok(true)
    }
}
