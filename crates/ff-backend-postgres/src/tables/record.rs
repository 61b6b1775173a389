//! Every record that has no table of its own.

use std::sync::Arc;

use ff_core::Result;
use ff_engine::codec::{KeyRange, encode_key};
use ff_engine::index::Bounds;
use ff_engine::key::Key;
use postgres_types::ToSql;
use tokio_postgres::Row;

use super::{cell, readable};
use crate::address::Stored;
use crate::session::Step;
use crate::short::short;
use crate::value::Bytes;

/// Rows by key.
pub(crate) fn load(keys: &[Key]) -> Step {
    let keys: Vec<Vec<u8>> = keys.iter().map(stored_key).collect();
    Step::new("SELECT key, version, body, long_key FROM {s}.record WHERE key = ANY($1::bytea[])").with(keys)
}

/// The key of a record as the table has it.
pub(crate) fn stored_key(key: &Key) -> Vec<u8> {
    short(encode_key(key))
}

/// The key of a row that begins with it as it is stored, and has it whole in another column if that is too long.
fn key(row: &Row, whole: usize) -> Result<Key> {
    match cell(row, whole)? {
        Some(whole) => readable(whole),
        None => readable(cell(row, 0)?),
    }
}

/// One row.
pub(crate) fn read(row: &Row) -> Result<(Key, Stored)> {
    let key = key(row, 3)?;
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
        "SELECT key, version, body, long_key FROM {{s}}.record WHERE key > $1 AND key <= $2 ORDER BY key {order} LIMIT $3"
    ))
    .with(after.to_vec())
    .with(until.to_vec())
    .with(limit)
}

/// The keys of one page of all rows after a key, up to another: first as they are stored.
pub(crate) fn keys(after: &[u8], until: &[u8], limit: i64) -> Step {
    Step::new("SELECT key, long_key FROM {s}.record WHERE key > $1 AND key <= $2 ORDER BY key LIMIT $3")
        .with(after.to_vec())
        .with(until.to_vec())
        .with(limit)
}

/// One row of [`keys`].
pub(crate) fn read_key(row: &Row) -> Result<Key> {
    key(row, 1)
}

/// How many rows there are.
pub(crate) fn count(range: &KeyRange) -> Step {
    let (low, high) = range.bounds(&Bounds::first(usize::MAX));
    Step::new("SELECT count(*) FROM {s}.record WHERE key > $1 AND key <= $2").with(low).with(high)
}

/// A version that no row has had.
pub(crate) fn new_version() -> i64 {
    fastrand::i64(1..)
}

/// A row that a decision depends on.
#[derive(Debug, ToSql)]
#[postgres(name = "record_seen")]
pub(crate) struct Seen {
    key: Vec<u8>,
    version: i64,
}

impl Seen {
    pub(crate) fn new(key: &Key, version: i64) -> Self {
        Self { key: stored_key(key), version }
    }
}

/// A row that takes the place of what its key held.
#[derive(Debug, ToSql)]
#[postgres(name = "record_write")]
pub(crate) struct Write {
    key: Vec<u8>,
    body: Bytes,
    long_key: Option<Vec<u8>>,
}

impl Write {
    pub(crate) fn new(key: &Key, body: Arc<[u8]>) -> Self {
        let whole = encode_key(key);
        let key = short(whole.clone());
        let long_key = Some(whole).filter(|whole| *whole != key);
        Self { key, body: Bytes(body), long_key }
    }
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
