//! Who did it: whether a commit of ours changed an item, or somebody else's did.

use std::sync::Arc;

use async_trait::async_trait;
use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;

use crate::engine::Engine;
use crate::key::Key;
use crate::store::{Op, Reach, Store, Tx};

/// Runs an operation in the partition of a record; says whether its commit changed that record, and what it answered.
pub(crate) async fn witness<S: Store, O: Op>(engine: &Engine<S>, key: Key, op: O) -> Result<(bool, O::Out)> {
    engine.store.transact(Arc::new(Witnessed { op, key })).await
}

/// The same where nothing but the change matters.
pub(crate) async fn changes<S: Store, O: Op>(engine: &Engine<S>, key: Key, op: O) -> Result<bool> {
    Ok(witness(engine, key, op).await?.0)
}

struct Witnessed<O> {
    op: O,
    key: Key,
}

#[async_trait]
impl<O: Op> Op for Witnessed<O> {
    type Out = (bool, O::Out);

    fn home(&self) -> Partition {
        self.op.home()
    }

    fn reach(&self) -> Reach {
        self.op.reach()
    }

    fn newborn(&self) -> Option<ExecutionId> {
        self.op.newborn()
    }

    fn prefetch(&self) -> Vec<Key> {
        let mut keys = self.op.prefetch();
        if !keys.contains(&self.key) {
            keys.push(self.key.clone());
        }
        keys
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        let before = tx.load(std::slice::from_ref(&self.key)).await?;
        let out = self.op.run(tx).await?;
        let after = tx.load(std::slice::from_ref(&self.key)).await?;
        Ok((before != after, out))
    }
}
