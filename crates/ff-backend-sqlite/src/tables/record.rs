//! Every record that has no table of its own.

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::codec::{KeyRange, decode_record, encode_key};
use ff_engine::index::{Bounds, Position};
use ff_engine::key::Key;
use ff_engine::records::Record;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{number, readable};
use crate::error::explain;

/// The record of a key.
pub(crate) fn load(db: &Connection, key: &Key) -> Result<Option<Record>> {
    let bytes: Option<Vec<u8>> = db
        .prepare_cached("SELECT body FROM record WHERE key = ?")
        .and_then(|mut statement| statement.query_row([encode_key(key)], |row| row.get(0)).optional())
        .map_err(explain)?;
    bytes.map(|bytes| decode_record(key, &bytes)).transpose()
}

/// Whether there is a record of a key.
pub(crate) fn is_present(db: &Connection, key: &Key) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM record WHERE key = ?")
        .and_then(|mut statement| statement.exists([encode_key(key)]))
        .map_err(explain)
}

/// Whether anything that belongs to an execution stands here.
pub(crate) fn has_any_of(db: &Connection, execution: ExecutionId) -> Result<bool> {
    let mut low = encode_key(&Key::execution(execution));
    low.pop();
    let high = [&*low, &[0xff]].concat();
    db.prepare_cached("SELECT 1 FROM record WHERE key > ? AND key <= ? LIMIT 1")
        .and_then(|mut statement| statement.exists(params![low, high]))
        .map_err(explain)
}

/// Writes a record, in place of what its key held.
pub(crate) fn put(db: &Connection, key: &[u8], body: &[u8]) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO record (key, body) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET body = excluded.body",
    )?
    .execute(params![key, body])
    .map(drop)
}

/// Removes a record.
pub(crate) fn delete(db: &Connection, key: &[u8]) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM record WHERE key = ?")?.execute([key]).map(drop)
}

fn rows(db: &Connection, range: &KeyRange, bounds: &Bounds) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let sql = if bounds.reverse {
        "SELECT key, body FROM record WHERE key > ? AND key <= ? ORDER BY key DESC LIMIT ?"
    } else {
        "SELECT key, body FROM record WHERE key > ? AND key <= ? ORDER BY key LIMIT ?"
    };
    let (low, high) = range.bounds(bounds);
    let limit = i64::try_from(bounds.limit).unwrap_or(i64::MAX);
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached(sql)?.query_map(params![low, high, limit], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    query().map_err(explain)
}

/// Records in order of their keys.
pub(crate) fn list(db: &Connection, range: &KeyRange, bounds: &Bounds) -> Result<Vec<(Position, Record)>> {
    let mut out = Vec::new();
    for (bytes, body) in rows(db, range, bounds)? {
        if let Some(position) = range.position(&bytes) {
            out.push((position, decode_record(&readable(&bytes)?, &body)?));
        }
    }
    Ok(out)
}

/// How many keys there are.
pub(crate) fn count(db: &Connection, range: &KeyRange) -> Result<u64> {
    let (low, high) = range.bounds(&Bounds::first(usize::MAX));
    db.prepare_cached("SELECT count(*) FROM record WHERE key > ? AND key <= ?")
        .and_then(|mut statement| statement.query_row(params![low, high], |row| row.get(0)))
        .map(number)
        .map_err(explain)
}

/// One page of all records after a key, up to another, as they are stored.
pub(crate) fn page(db: &Connection, after: &[u8], until: &[u8], limit: i64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached("SELECT key, body FROM record WHERE key > ? AND key <= ? ORDER BY key LIMIT ?")?
            .query_map(params![after, until, limit], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect()
    };
    query().map_err(explain)
}
