//! The journal's slots: a ring of rows of one size, each in a page of its own, written over and over.

use ff_core::Result;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::error::explain;

/// The bytes of a slot.
pub(crate) fn read(db: &Connection, slot: i64) -> Result<Option<Vec<u8>>> {
    db.prepare_cached("SELECT bytes FROM journal WHERE slot = ?")
        .and_then(|mut statement| statement.query_row([slot], |row| row.get(0)).optional())
        .map_err(explain)
}

/// Writes a slot. Bytes of the same size are written in place, so that nothing else of the file changes.
pub(crate) fn write(db: &Connection, slot: i64, bytes: &[u8]) -> rusqlite::Result<()> {
    let written = db.prepare_cached("UPDATE journal SET bytes = ? WHERE slot = ?")?.execute(params![bytes, slot])?;
    if written == 0 {
        db.prepare_cached("INSERT INTO journal (slot, bytes) VALUES (?, ?)")?.execute(params![slot, bytes])?;
    }
    Ok(())
}

/// How many slots there are; they are numbered from 0.
pub(crate) fn count(db: &Connection) -> Result<i64> {
    let last: Option<i64> = db
        .prepare_cached("SELECT max(slot) FROM journal")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(explain)?;
    Ok(last.map_or(0, |last| last + 1))
}
