//! The event log.

use ff_core::{Result, TimestampMs};
use ff_engine::codec::decode_event;
use ff_engine::event::Event;
use tokio_postgres::Row;

use super::{cell, number};
use crate::session::Step;

/// The name of the row that says up to which event the log was trimmed.
const TRIMMED: &str = "events_trimmed_to";

/// Up to where nothing is missing. To be asked for before anything is read.
pub(crate) fn horizon() -> Step {
    Step::new("SELECT {s}.event_horizon()")
}

/// Where the log was trimmed, and the last event up to a number: a number that no event has may be given out again after a crash.
pub(crate) fn extent(until: u64) -> Step {
    Step::new(
        "SELECT coalesce((SELECT value FROM {s}.deployment WHERE name = $1), 0),
           coalesce((SELECT max(sequence) FROM {s}.event WHERE sequence <= $2), 0)",
    )
    .with(TRIMMED)
    .with(until.cast_signed())
}

/// Events after one and up to another, oldest first.
pub(crate) fn after(sequence: u64, until: u64, limit: usize) -> Step {
    Step::new(
        "SELECT sequence, body, coalesce((SELECT value FROM {s}.deployment WHERE name = $4), 0)
         FROM {s}.event WHERE sequence > $1 AND sequence <= $2 ORDER BY sequence LIMIT $3",
    )
    .with(sequence.cast_signed())
    .with(until.cast_signed())
    .with(i64::try_from(limit).unwrap_or(i64::MAX))
    .with(TRIMMED)
}

/// Where the log began at the moment of [`after`].
pub(crate) fn trimmed(row: &Row) -> Result<u64> {
    number(cell(row, 2)?)
}

/// One row of [`after`].
pub(crate) fn read(row: &Row) -> Result<(u64, Event)> {
    Ok((number(cell(row, 0)?)?, decode_event(cell(row, 1)?)?))
}

/// Appends events, in their order.
pub(crate) fn append(at: Vec<i64>, bodies: Vec<Vec<u8>>) -> Option<Step> {
    let is_empty = at.is_empty();
    let step = Step::new(
        "INSERT INTO {s}.event (sequence, at, body)
         SELECT nextval('{s}.event_sequence'), at, body
         FROM (SELECT * FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS w (at, body, place) ORDER BY place) AS w",
    )
    .with(at)
    .with(bodies);
    Some(step).filter(|_| !is_empty)
}

/// Drops the oldest events up to a number as long as they are older than `before`, and remembers where the log begins; says how many.
pub(crate) fn trim(before: TimestampMs, until: u64, limit: usize) -> Step {
    Step::new(
        "WITH oldest AS (
           SELECT sequence, at FROM {s}.event WHERE sequence <= $2 ORDER BY sequence LIMIT $3
         ), kept AS (
           SELECT min(sequence) AS sequence FROM oldest WHERE at >= $1
         ), dropped AS (
           DELETE FROM {s}.event WHERE sequence IN (
             SELECT sequence FROM oldest WHERE sequence < coalesce((SELECT sequence FROM kept), 9223372036854775807)
           ) RETURNING sequence
         ), noted AS (
           INSERT INTO {s}.deployment (name, value) SELECT $4, max(sequence) FROM dropped HAVING count(*) > 0
           ON CONFLICT (name) DO UPDATE SET value = greatest(deployment.value, excluded.value)
         )
         SELECT count(*) FROM dropped",
    )
    .with(before.0)
    .with(until.cast_signed())
    .with(i64::try_from(limit).unwrap_or(i64::MAX))
    .with(TRIMMED)
}
