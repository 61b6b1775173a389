//! An ownership ended: its quota slots are free.

use ff_core::fault::{Fault, is_on};
use ff_core::ids::{ExecutionId, LeaseEpoch};
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Execution, Settlement};
use crate::scheduler::admission::free;
use crate::scheduler::slots::Because;
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;
use crate::verbs::read_one;

/// Settles the ownership that just ended, so that the next claim finds its slots free. Whatever fails here is done when the
/// settlement comes due.
pub(crate) async fn settle_now<S: Store>(engine: &Engine<S>, execution: ExecutionId) {
    if engine.settings.settle_at_once {
        let _ = settle_latest(engine, execution).await;
    }
}

async fn settle_latest<S: Store>(engine: &Engine<S>, execution: ExecutionId) -> Result<()> {
    let found: Option<Execution> = read_one(&engine.store, Key::execution(execution)).await?;
    let Some(found) = found.filter(|found| !found.quota_policy_ids.is_empty()) else { return Ok(()) };
    let pending: Option<Settlement> = read_one(&engine.store, Key::settlement(execution, found.epoch)).await?;
    match pending {
        Some(settlement) => apply(engine, settlement).await.map(drop),
        None => Ok(()),
    }
}

/// Frees the slots of an ended ownership.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, settlement: Settlement, _now: TimestampMs) -> Result<bool> {
    apply(engine, settlement).await
}

/// Frees first and forgets afterwards: a crash in between frees twice, which changes nothing. Says whether it was there to forget.
async fn apply<S: Store>(engine: &Engine<S>, settlement: Settlement) -> Result<bool> {
    let Settlement { execution, epoch, quotas, .. } = settlement;
    let mut freed = Ok(());
    for quota in quotas.into_iter().filter(|_| !is_on(Fault::SlotNotFreed)) {
        // One quota that cannot be freed keeps no other waiting.
        freed = freed.and(free(engine, quota, execution, Because::Settled(epoch)).await.map(drop));
    }
    freed?;
    changes(engine, Key::settlement(execution, epoch), Settled { execution, epoch }).await
}

struct Settled {
    execution: ExecutionId,
    epoch: LeaseEpoch,
}

#[async_trait::async_trait]
impl Op for Settled {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        tx.delete(Key::settlement(self.execution, self.epoch));
        Ok(())
    }
}
