//! The event log.

use ff_core::{Result, TimestampMs};
use ff_engine::codec::decode_event;
use ff_engine::event::Event;
use ff_engine::event::numbered::Extent;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, params, params_from_iter};

use super::number;
use crate::error::explain;
use crate::young::View;

/// The name of the row that says up to which event the log was trimmed.
const TRIMMED: &str = "events_trimmed_to";

/// What is left of the log.
pub(crate) fn extent(View { db, young }: View<'_>) -> Result<Extent> {
    let query = || -> rusqlite::Result<(i64, i64)> {
        let trimmed = db
            .prepare_cached("SELECT value FROM deployment WHERE name = ?")?
            .query_row([TRIMMED], |row| row.get(0))
            .optional()?
            .unwrap_or(0);
        let last: Option<i64> =
            db.prepare_cached("SELECT max(sequence) FROM event")?.query_row([], |row| row.get(0))?;
        Ok((trimmed, last.unwrap_or(0).max(trimmed)))
    };
    let (trimmed, last) = query().map_err(explain)?;
    Ok(Extent { trimmed: number(trimmed), last: young.last_event().unwrap_or_else(|| number(last)) })
}

/// Events that one statement appends.
const APPENDED_AT_ONCE: usize = 16;

/// An event on its way into the log.
#[derive(Debug, PartialEq)]
pub(crate) struct Appended {
    pub(crate) sequence: u64,
    pub(crate) at: TimestampMs,
    pub(crate) body: Vec<u8>,
}

/// Appends events.
pub(crate) fn append(db: &Connection, events: &[Appended]) -> rusqlite::Result<()> {
    let (many, few) = events.as_chunks::<APPENDED_AT_ONCE>();
    for chunk in many {
        insert(db, chunk)?;
    }
    few.chunks(1).try_for_each(|single| insert(db, single))
}

fn insert(db: &Connection, events: &[Appended]) -> rusqlite::Result<()> {
    let rows = vec!["(?, ?, ?)"; events.len()].join(", ");
    let values = events.iter().flat_map(|event| -> [ToSqlOutput<'_>; 3] {
        [event.sequence.cast_signed().into(), event.at.0.into(), ToSqlOutput::Borrowed(ValueRef::Blob(&event.body))]
    });
    db.prepare_cached(&format!("INSERT INTO event (sequence, at, body) VALUES {rows}"))?
        .execute(params_from_iter(values))
        .map(drop)
}

/// Events after one, oldest first.
pub(crate) fn after(View { db, young }: View<'_>, sequence: u64, limit: usize) -> Result<Vec<(u64, Event)>> {
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = || -> rusqlite::Result<Vec<(i64, Vec<u8>)>> {
        db.prepare_cached("SELECT sequence, body FROM event WHERE sequence > ? ORDER BY sequence LIMIT ?")?
            .query_map(params![sequence.cast_signed(), most], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect()
    };
    let settled = query().map_err(explain)?;
    let mut events: Vec<(u64, Event)> = settled
        .into_iter()
        .map(|(sequence, body)| Ok((number(sequence), decode_event(&body)?)))
        .collect::<Result<_>>()?;
    for event in young.events_after(sequence).take(limit - events.len()) {
        events.push((event.sequence, decode_event(&event.body)?));
    }
    Ok(events)
}

/// Drops the oldest events as long as they are older than `before`; says how many.
pub(crate) fn trim(db: &Connection, before: TimestampMs, limit: usize) -> rusqlite::Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let oldest: Vec<(i64, i64)> = db
        .prepare_cached("SELECT sequence, at FROM event ORDER BY sequence LIMIT ?")?
        .query_map([limit], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let Some((last, _)) = oldest.iter().take_while(|(_, at)| *at < before.0).last() else { return Ok(0) };
    let dropped = db.prepare_cached("DELETE FROM event WHERE sequence <= ?")?.execute([last])?;
    db.prepare_cached(
        "INSERT INTO deployment (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )?
    .execute(params![TRIMMED, last])?;
    Ok(dropped)
}
