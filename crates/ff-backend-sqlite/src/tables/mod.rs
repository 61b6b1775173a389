//! The tables, one file each: statements and nothing else.

pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod execution;
pub(crate) mod record;

use ff_core::Result;
use ff_engine::codec::decode_key;
use ff_engine::index::{Bounds, Index, Listed, Position};
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use rusqlite::Connection;

use crate::error::corrupt;
use crate::indexes::Place;

/// A stored record, and the row it was found in where its table has rows.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) row: Option<i64>,
    pub(crate) record: Record,
}

/// The record of a key. Ownership is read out of its execution.
pub(crate) fn load(db: &Connection, key: &Key) -> Result<Option<Found>> {
    match key.name {
        Name::Execution(id) => execution::load(db, id),
        Name::Fence(id) => Ok(execution::load(db, id)?.map(|found| match found.record {
            Record::Execution(execution) => Found { row: None, record: execution.ownership().into() },
            record => Found { row: None, record },
        })),
        _ => Ok(record::load(db, key)?.map(|record| Found { row: None, record })),
    }
}

/// The records that stand in an index, within bounds.
pub(crate) fn list(db: &Connection, index: &Index, bounds: &Bounds) -> Result<Vec<Listed>> {
    let listed = |(position, record)| Listed { index: index.clone(), position, record };
    match Place::of(index) {
        Place::Columns(columns) => Ok(execution::list(db, &columns, bounds)?.into_iter().map(listed).collect()),
        Place::Keys(range) => Ok(record::list(db, &range, bounds)?.into_iter().map(listed).collect()),
        Place::Rows(list) => {
            let mut out = Vec::new();
            for (position, bytes) in entry::list(db, &list, bounds)? {
                if let Some(found) = load(db, &readable(&bytes)?)? {
                    out.push(listed((position, found.record)));
                }
            }
            Ok(out)
        }
    }
}

/// The records of several indexes in one order.
pub(crate) fn list_merged(db: &Connection, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
    let mut out = Vec::new();
    for index in indexes {
        out.extend(list(db, index, bounds)?);
    }
    if indexes.len() > 1 {
        out.sort_by(|a, b| a.position.cmp(&b.position));
        if bounds.reverse {
            out.reverse();
        }
        out.truncate(bounds.limit);
    }
    Ok(out)
}

/// The keys that stand in an index, within bounds; no record is read.
pub(crate) fn keys(db: &Connection, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
    match Place::of(index) {
        Place::Columns(columns) => execution::keys(db, &columns, bounds),
        Place::Keys(range) => record::keys(db, &range, bounds),
        Place::Rows(list) => entry::list(db, &list, bounds)?
            .into_iter()
            .map(|(position, bytes)| Ok((position, readable(&bytes)?)))
            .collect(),
    }
}

/// How many entries stand in an index.
pub(crate) fn count(db: &Connection, index: &Index) -> Result<u64> {
    match Place::of(index) {
        Place::Columns(columns) => execution::count(db, &columns),
        Place::Keys(range) => record::count(db, &range),
        Place::Rows(list) => entry::count(db, &list),
    }
}

/// A key that a row refers to.
pub(crate) fn readable(bytes: &[u8]) -> Result<Key> {
    decode_key(bytes).ok_or_else(|| corrupt("an index refers to a key of no known kind"))
}

fn number(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
