//! Typed conveniences over the verbs of a transaction, and over the reads of a store.

use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};

use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Execution, Fence, Flow, Record, Stored};
use crate::store::{Store, Tx};

fn typed<R: Stored>(record: Record) -> Result<R> {
    R::try_from(record).map_err(|other| {
        EngineError::validation(
            ValidationKind::Corruption,
            format!("{:?}: record: unexpected {}", other.key(), other.kind()),
        )
    })
}

impl dyn Tx + '_ {
    /// One record.
    pub(crate) async fn get<R: Stored>(&mut self, key: Key) -> Result<Option<R>> {
        let mut found = self.load(std::slice::from_ref(&key)).await?;
        found.pop().flatten().map(typed).transpose()
    }

    /// Records that stand in an owned index.
    pub(crate) async fn range_of<R: Stored>(&mut self, index: Index, bounds: Bounds) -> Result<Vec<R>> {
        self.range(&index, &bounds).await?.into_iter().map(typed).collect()
    }

    /// Writes a record.
    pub(crate) fn put<R: Stored>(&mut self, record: R) {
        self.put_record(record.into());
    }

    /// An execution, or `NotFound`.
    pub(crate) async fn execution(&mut self, id: ExecutionId) -> Result<Execution> {
        self.get(Key::execution(id)).await?.ok_or(EngineError::not_found(Entity::Execution))
    }

    /// Ownership of an execution, or `NotFound`.
    pub(crate) async fn fence(&mut self, id: ExecutionId) -> Result<Fence> {
        self.get(Key::fence(id)).await?.ok_or(EngineError::not_found(Entity::Execution))
    }

    /// A flow, or `NotFound`.
    pub(crate) async fn flow(&mut self, home: Partition, id: FlowId) -> Result<Flow> {
        self.get(Key::flow(home, id)).await?.ok_or(EngineError::not_found(Entity::Flow))
    }
}

/// One committed record.
pub(crate) async fn read_one<R: Stored, S: Store>(store: &S, key: Key) -> Result<Option<R>> {
    let mut found = store.read(std::slice::from_ref(&key)).await?;
    found.pop().flatten().map(typed).transpose()
}

/// Committed records that stand in an index.
pub(crate) async fn list_of<R: Stored, S: Store>(store: &S, index: Index, bounds: Bounds) -> Result<Vec<R>> {
    let found = store.list(std::slice::from_ref(&index), &bounds).await?;
    found.into_iter().map(|listed| typed(listed.record)).collect()
}
