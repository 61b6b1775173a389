//! Where records stand in the indexes that have rows of their own.

use ff_core::Result;
use ff_engine::codec::encode_index;
use ff_engine::index::{Bounds, Entry, Position};
use rusqlite::{Connection, params};

use super::number;
use crate::error::explain;

/// Adds an entry.
pub(crate) fn insert(db: &Connection, list: &[u8], position: &Position, key: &[u8]) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO entry (list, major, tie, key) VALUES (?, ?, ?, ?)")?
        .execute(params![list, position.major, &*position.tie, key])
        .map(drop)
}

/// Removes an entry.
pub(crate) fn delete(db: &Connection, entry: &Entry) -> rusqlite::Result<()> {
    let list = encode_index(&entry.index);
    db.prepare_cached("DELETE FROM entry WHERE list = ? AND major = ? AND tie = ?")?
        .execute(params![list, entry.position.major, &*entry.position.tie])
        .map(drop)
}

/// Whether an entry is there and refers to this key.
pub(crate) fn is_present(db: &Connection, entry: &Entry, key: &[u8]) -> Result<bool> {
    let list = encode_index(&entry.index);
    db.prepare_cached("SELECT 1 FROM entry WHERE list = ? AND major = ? AND tie = ? AND key = ?")
        .and_then(|mut statement| statement.exists(params![list, entry.position.major, &*entry.position.tie, key]))
        .map_err(explain)
}

/// The entries of a list within bounds, with the keys they refer to.
pub(crate) fn list(db: &Connection, list: &[u8], bounds: &Bounds) -> Result<Vec<(Position, Vec<u8>)>> {
    let sql = match (&bounds.after, &bounds.until, bounds.reverse) {
        (None, None, false) => "SELECT major, tie, key FROM entry WHERE list = ?1 ORDER BY major, tie LIMIT ?6",
        (_, _, false) => {
            "SELECT major, tie, key FROM entry WHERE list = ?1 AND (major, tie) > (?2, ?3) AND (major, tie) <= (?4, ?5)
             ORDER BY major, tie LIMIT ?6"
        }
        (_, _, true) => {
            "SELECT major, tie, key FROM entry WHERE list = ?1 AND (major, tie) > (?2, ?3) AND (major, tie) <= (?4, ?5)
             ORDER BY major DESC, tie DESC LIMIT ?6"
        }
    };
    // No entry stands at the lowest number without a tie, nor at the highest one.
    let (low, low_tie) = bounds.after.as_ref().map_or((i64::MIN, &[][..]), |at| (at.major, &at.tie));
    let (high, high_tie) = bounds.until.as_ref().map_or((i64::MAX, &[0xff; 8][..]), |at| (at.major, &at.tie));
    let limit = i64::try_from(bounds.limit).unwrap_or(i64::MAX);
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached(sql)?
            .query_map(params![list, low, low_tie, high, high_tie, limit], |row| {
                Ok((Position::new(row.get(0)?, row.get::<_, Vec<u8>>(1)?), row.get(2)?))
            })?
            .collect()
    };
    query().map_err(explain)
}

/// Whether any list whose name begins so has an entry.
pub(crate) fn has_any(db: &Connection, prefix: &[u8]) -> Result<bool> {
    let end = [prefix, &[0xff; 32]].concat();
    db.prepare_cached("SELECT 1 FROM entry WHERE list >= ? AND list <= ? LIMIT 1")
        .and_then(|mut statement| statement.exists(params![prefix, end]))
        .map_err(explain)
}

/// How many entries a list has.
pub(crate) fn count(db: &Connection, list: &[u8]) -> Result<u64> {
    db.prepare_cached("SELECT count(*) FROM entry WHERE list = ?")
        .and_then(|mut statement| statement.query_row([list], |row| row.get(0)))
        .map(number)
        .map_err(explain)
}

/// One page of all entries, after a place, with the keys they refer to: for checks.
pub(crate) fn page(db: &Connection, after: &RawEntry, limit: i64) -> Result<Vec<(RawEntry, Vec<u8>)>> {
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached(
            "SELECT list, major, tie, key FROM entry WHERE (list, major, tie) > (?, ?, ?) ORDER BY list, major, tie LIMIT ?",
        )?
        .query_map(params![after.list, after.major, after.tie, limit], |row| {
            Ok((RawEntry { list: row.get(0)?, major: row.get(1)?, tie: row.get(2)? }, row.get(3)?))
        })?
        .collect()
    };
    query().map_err(explain)
}

/// Removes an entry that nothing declares, if it still refers to this key.
pub(crate) fn delete_raw(db: &Connection, entry: &RawEntry, key: &[u8]) -> rusqlite::Result<usize> {
    db.prepare_cached("DELETE FROM entry WHERE list = ? AND major = ? AND tie = ? AND key = ?")?.execute(params![
        entry.list,
        entry.major,
        entry.tie,
        key
    ])
}

/// An entry as it is stored, ordered as the table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RawEntry {
    pub(crate) list: Vec<u8>,
    pub(crate) major: i64,
    pub(crate) tie: Vec<u8>,
}

impl RawEntry {
    /// The stored form of an entry.
    pub(crate) fn of(entry: &Entry) -> Self {
        Self { list: encode_index(&entry.index), major: entry.position.major, tie: entry.position.tie.to_vec() }
    }
}
