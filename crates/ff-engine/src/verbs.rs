//! Typed conveniences over the verbs of a transaction, and over the reads of a store.

use ff_core::error::{Entity, ValidationKind};
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};

use crate::draft::Draft;
use crate::index::{Bounds, Index, Listed, Position};
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

    /// An execution that is likely to be changed, if it exists.
    pub(crate) async fn draft(&mut self, id: ExecutionId) -> Result<Option<Draft<Execution>>> {
        match self.load(&[Key::execution(id)]).await?.pop().flatten() {
            Some(Record::Execution(execution)) => Ok(Some(execution.into())),
            Some(other) => typed::<Execution>(other).map(|execution| Some(execution.into())),
            None => Ok(None),
        }
    }

    /// Records that stand in an owned index.
    pub(crate) async fn range_of<R: Stored>(&mut self, index: Index, bounds: Bounds) -> Result<Vec<R>> {
        self.range(&index, &bounds).await?.into_iter().map(typed).collect()
    }

    /// Writes a record.
    pub(crate) fn put<R: Stored>(&mut self, record: R) {
        self.put_record(record.into());
    }

    /// Writes an execution as it was changed.
    pub(crate) fn put_draft(&mut self, execution: &Draft<Execution>) {
        self.put_record(Record::Execution(execution.shared()));
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

/// What stands at one place of an index.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) index: Index,
    pub(crate) position: Position,
    pub(crate) key: Key,
    /// Nothing when it does not decode.
    pub(crate) record: Option<Record>,
}

/// Committed records that stand in any of some indexes, merged, from the first on. One that does not decode is named all the same:
/// where everything else waits behind it, it must not hide what else there is.
pub(crate) async fn list_all<S: Store>(store: &S, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Found>> {
    match store.list(indexes, bounds).await {
        Ok(listed) => Ok(listed.into_iter().map(found).collect()),
        Err(EngineError::Validation { .. }) => list_one_by_one(store, indexes, bounds).await,
        Err(error) => Err(error),
    }
}

fn found(listed: Listed) -> Found {
    let Listed { index, position, record } = listed;
    Found { index, position, key: record.key(), record: Some(record) }
}

async fn list_one_by_one<S: Store>(store: &S, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Found>> {
    let mut places = Vec::new();
    for index in indexes {
        let keys = store.keys(index, bounds).await?;
        places.extend(keys.into_iter().map(|(position, key)| (position, index, key)));
    }
    places.sort_by(|a, b| a.0.cmp(&b.0));
    places.truncate(bounds.limit);
    let mut out = Vec::with_capacity(places.len());
    for (position, index, key) in places {
        let record = match store.read(std::slice::from_ref(&key)).await {
            Ok(read) => match read.into_iter().next().flatten() {
                Some(record) => Some(record),
                None => continue,
            },
            Err(EngineError::Validation { .. }) => None,
            Err(error) => return Err(error),
        };
        out.push(Found { index: index.clone(), position, key, record });
    }
    Ok(out)
}
