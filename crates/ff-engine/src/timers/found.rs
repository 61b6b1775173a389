//! Listing what came due although some of it cannot be read: one damaged record must not hold up all the others.

use ff_core::error::ValidationKind;
use ff_core::{EngineError, Result};

use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::Record;
use crate::store::Store;

/// An index entry with the record behind it, or with what is wrong with that record.
pub(crate) struct Found {
    pub(crate) index: Index,
    pub(crate) position: Position,
    pub(crate) key: Key,
    pub(crate) record: Result<Record>,
}

/// What stands in some indexes, in position order, within bounds. Reads record by record only when a whole page cannot be read.
pub(crate) async fn found<S: Store>(store: &S, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Found>> {
    match store.list(indexes, bounds).await {
        Ok(page) => Ok(page
            .into_iter()
            .map(|listed| Found {
                index: listed.index,
                position: listed.position,
                key: listed.record.key(),
                record: Ok(listed.record),
            })
            .collect()),
        Err(EngineError::Validation { kind: ValidationKind::Corruption, .. }) => {
            one_by_one(store, indexes, bounds).await
        }
        Err(error) => Err(error),
    }
}

async fn one_by_one<S: Store>(store: &S, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Found>> {
    let mut entries = Vec::new();
    for index in indexes {
        let keys = store.keys(index, bounds).await?;
        entries.extend(keys.into_iter().map(|(position, key)| (position, key, index)));
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries.truncate(bounds.limit);
    let mut found = Vec::with_capacity(entries.len());
    for (position, key, index) in entries {
        let record = match store.read(std::slice::from_ref(&key)).await {
            Ok(mut records) => match records.pop().flatten() {
                Some(record) => Ok(record),
                None => continue,
            },
            Err(damaged @ EngineError::Validation { kind: ValidationKind::Corruption, .. }) => Err(damaged),
            Err(error) => return Err(error),
        };
        found.push(Found { index: index.clone(), position, key, record });
    }
    Ok(found)
}
