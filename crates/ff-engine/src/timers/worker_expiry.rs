//! A registration runs out.

use async_trait::async_trait;
use ff_core::partition::{Partition, of_worker};
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::event::WorkerChange;
use crate::key::Key;
use crate::ops::workers::announce;
use crate::records::{Stored, Worker};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Sweeps an entry that nobody refreshed.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Worker, _now: TimestampMs) -> Result<bool> {
    changes(engine, record.key(), Sweep { worker: record }).await
}

struct Sweep {
    worker: Worker,
}

#[async_trait]
impl Op for Sweep {
    type Out = ();

    fn home(&self) -> Partition {
        of_worker(&self.worker.instance)
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![self.worker.key()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let now = tx.now();
        let Some(worker) = tx.get::<Worker>(self.worker.key()).await? else { return Ok(()) };
        if !worker.is_live(now) {
            tx.delete(worker.key());
            announce(tx, &worker.namespace, &worker.instance, WorkerChange::TtlSwept);
        }
        Ok(())
    }
}
