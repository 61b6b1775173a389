//! A grant ran out unused.

use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Execution, Grant};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Removes the grant; what it reserved can be taken by anybody again. Admissions recorded for it run out by themselves.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, grant: Grant, _now: TimestampMs) -> Result<bool> {
    changes(engine, Key::grant(grant.execution), DropGrant { grant }).await
}

struct DropGrant {
    grant: Grant,
}

#[async_trait::async_trait]
impl Op for DropGrant {
    type Out = ();

    fn home(&self) -> Partition {
        self.grant.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::grant(self.grant.execution), Key::execution(self.grant.execution)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let key = Key::grant(self.grant.execution);
        let Some(stored) = tx.get::<Grant>(key.clone()).await? else { return Ok(()) };
        if stored.is_live(tx.now()) {
            return Ok(());
        }
        tx.delete(key);
        // Claims that wait on the lane passed it by; writing it again wakes them.
        if let Some(execution) = tx.get::<Execution>(Key::execution(self.grant.execution)).await?
            && (execution.is_eligible() || execution.reclaim_open)
        {
            tx.put(execution);
        }
        Ok(())
    }
}
