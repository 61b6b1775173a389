//! A remembered answer runs out.

use async_trait::async_trait;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Dedup, Stored};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Forgets an answer that no longer counts.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Dedup, _now: TimestampMs) -> Result<bool> {
    changes(engine, record.key(), Forget { key: record.key() }).await
}

struct Forget {
    key: Key,
}

#[async_trait]
impl Op for Forget {
    type Out = ();

    fn home(&self) -> Partition {
        self.key.partition
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![self.key.clone()]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let now = tx.now();
        let stored = tx.get::<Dedup>(self.key.clone()).await?;
        if stored.is_some_and(|dedup| !dedup.is_live(now)) {
            tx.delete(self.key.clone());
        }
        Ok(())
    }
}
