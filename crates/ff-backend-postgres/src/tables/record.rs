//! Every record that has no table of its own.

use ff_core::Result;
use ff_engine::codec::encode_key;
use ff_engine::index::Bounds;
use ff_engine::key::Key;
use tokio_postgres::Row;

use super::{cell, readable};
use crate::address::Stored;
use crate::indexes::KeyRange;
use crate::session::Step;

/// Rows by key.
pub(crate) fn load(keys: &[Key]) -> Step {
    let keys: Vec<Vec<u8>> = keys.iter().map(encode_key).collect();
    Step::new("SELECT key, version, body FROM {s}.record WHERE key = ANY($1::bytea[])").with(keys)
}

/// One row.
pub(crate) fn read(row: &Row) -> Result<(Key, Stored)> {
    let key = readable(cell(row, 0)?)?;
    let stored = Stored::read(&key, cell(row, 1)?, cell(row, 2)?);
    Ok((key, stored))
}

/// Rows in order of their keys.
pub(crate) fn list(range: &KeyRange, bounds: &Bounds) -> Step {
    let (low, high) = range.bounds(bounds);
    page_in(&low, &high, i64::try_from(bounds.limit).unwrap_or(i64::MAX), bounds.reverse)
}

/// One page of all rows after a key, up to another.
pub(crate) fn page(after: &[u8], until: &[u8], limit: i64) -> Step {
    page_in(after, until, limit, false)
}

fn page_in(after: &[u8], until: &[u8], limit: i64, is_reverse: bool) -> Step {
    let order = if is_reverse { "DESC" } else { "ASC" };
    Step::new(format!(
        "SELECT key, version, body FROM {{s}}.record WHERE key > $1 AND key <= $2 ORDER BY key {order} LIMIT $3"
    ))
    .with(after.to_vec())
    .with(until.to_vec())
    .with(limit)
}

/// How many rows there are.
pub(crate) fn count(range: &KeyRange) -> Step {
    let (low, high) = range.bounds(&Bounds::first(usize::MAX));
    Step::new("SELECT count(*) FROM {s}.record WHERE key > $1 AND key <= $2").with(low).with(high)
}

/// Writes rows in place of what their keys held.
pub(crate) fn put(keys: Vec<Vec<u8>>, bodies: Vec<Vec<u8>>, version: i64) -> Option<Step> {
    let is_empty = keys.is_empty();
    let step = Step::new(
        "INSERT INTO {s}.record (key, version, body)
         SELECT key, $3, body FROM unnest($1::bytea[], $2::bytea[]) AS w (key, body)
         ON CONFLICT (key) DO UPDATE SET version = excluded.version, body = excluded.body",
    )
    .with(keys)
    .with(bodies)
    .with(version);
    Some(step).filter(|_| !is_empty)
}

/// Removes rows.
pub(crate) fn delete(keys: Vec<Vec<u8>>) -> Option<Step> {
    (!keys.is_empty()).then(|| Step::new("DELETE FROM {s}.record WHERE key = ANY($1::bytea[])").with(keys))
}

/// Gives rows another version.
pub(crate) fn touch(keys: Vec<Vec<u8>>, version: i64) -> Option<Step> {
    let sql = "UPDATE {s}.record SET version = $2 WHERE key = ANY($1::bytea[])";
    (!keys.is_empty()).then(|| Step::new(sql).with(keys).with(version))
}
