//! The event log. A row holds events of one moment, and each of them has the number of its row and its place in it.

use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::codec::decode_event;
use ff_engine::event::Event;
use postgres_types::ToSql;
use tokio_postgres::Row;

use super::{cell, number};
use crate::error::corrupt;
use crate::session::Step;

/// The name of the row that says up to which event the log was trimmed.
const TRIMMED: &str = "events_trimmed_to";

/// Numbers that belong to one row. Few rows use more than a handful of them.
const NUMBERS: u64 = 1_024;

/// Bytes of a row that takes no further event: what is longer would be moved out of the table.
const BYTES_MAX: usize = 3_900;

/// A row to be written.
#[derive(Debug, ToSql)]
#[postgres(name = "event_write")]
struct Write {
    at: i64,
    count: i32,
    bodies: Vec<u8>,
}

impl Write {
    fn has_room(&self, at: TimestampMs, bytes: usize) -> bool {
        let is_free = u64::try_from(self.count).is_ok_and(|count| count < NUMBERS);
        is_free && self.at == at.0 && self.bodies.len() + bytes <= BYTES_MAX
    }

    fn push(&mut self, length: u32, body: &[u8]) {
        self.count += 1;
        self.bodies.extend_from_slice(&length.to_be_bytes());
        self.bodies.extend_from_slice(body);
    }
}

/// Events on their way into rows, in their order.
#[derive(Debug, Default)]
pub(crate) struct Rows(Vec<Write>);

impl Rows {
    pub(crate) fn push(&mut self, at: TimestampMs, body: &[u8]) -> Result<()> {
        let length = u32::try_from(body.len()).map_err(|_| EngineError::invalid("an event is too large"))?;
        if !self.0.last().is_some_and(|row| row.has_room(at, body.len())) {
            self.0.push(Write { at: at.0, count: 0, bodies: Vec::with_capacity(BYTES_MAX / 2) });
        }
        if let Some(row) = self.0.last_mut() {
            row.push(length, body);
        }
        Ok(())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives them to a call of `commit`.
    pub(crate) fn parameters(self, step: Step) -> Step {
        step.with(self.0)
    }
}

/// Up to which row nothing is missing. To be asked for before anything is read.
///
/// It can fall back a little: a writer may announce itself with a number from before the last look. So whoever got events up to `known`
/// already knows better.
pub(crate) fn horizon(known: Option<u64>) -> Step {
    Step::new("SELECT greatest({s}.event_horizon(), $1)").with(known.map(|event| (event / NUMBERS).cast_signed()))
}

/// The event up to which the log was trimmed, and the last one up to a row: a number that no event has may be given out again after a
/// crash.
pub(crate) fn extent(until: u64) -> Step {
    Step::new(
        "SELECT coalesce((SELECT value FROM {s}.deployment WHERE name = $1), 0),
           coalesce((SELECT sequence * $3 + count - 1 FROM {s}.event WHERE sequence <= $2 ORDER BY sequence DESC LIMIT 1), 0)",
    )
    .with(TRIMMED)
    .with(until.cast_signed())
    .with(NUMBERS.cast_signed())
}

/// Rows with events after one, up to a row, oldest first.
pub(crate) fn after(event: u64, until: u64, rows: usize) -> Step {
    Step::new(
        "SELECT sequence, bodies, coalesce((SELECT value FROM {s}.deployment WHERE name = $4), 0)
         FROM {s}.event WHERE sequence >= $1 AND sequence <= $2 ORDER BY sequence LIMIT $3",
    )
    .with((event / NUMBERS).cast_signed())
    .with(until.cast_signed())
    .with(i64::try_from(rows).unwrap_or(i64::MAX))
    .with(TRIMMED)
}

/// Where the log began at the moment of [`after`].
pub(crate) fn trimmed(row: &Row) -> Result<u64> {
    number(cell(row, 2)?)
}

/// The events of one row of [`after`], with their numbers.
pub(crate) fn read(row: &Row) -> Result<Vec<(u64, Event)>> {
    let first = number(cell(row, 0)?)?.saturating_mul(NUMBERS);
    let mut rest: &[u8] = cell(row, 1)?;
    let mut events = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let (body, behind) = behind.split_at_checked(length).ok_or_else(|| corrupt("an event is cut short"))?;
        events.push((first + events.len() as u64, decode_event(body)?));
        rest = behind;
    }
    if rest.is_empty() { Ok(events) } else { Err(corrupt("an event is cut short")) }
}

/// Drops the oldest rows up to one as long as they are older than `before`, and remembers where the log begins; says how many events were
/// dropped. Whole rows go, and one of them in any case, however small the limit.
pub(crate) fn trim(before: TimestampMs, until: u64, limit: usize) -> Step {
    Step::new(
        "WITH oldest AS (
           SELECT sequence, at, count, sum(count) OVER (ORDER BY sequence) - count AS earlier
           FROM (SELECT * FROM {s}.event WHERE sequence <= $2 ORDER BY sequence LIMIT $3) AS first
         ), kept AS (
           SELECT min(sequence) AS sequence FROM oldest WHERE at >= $1 OR (earlier > 0 AND earlier + count > $3)
         ), dropped AS (
           DELETE FROM {s}.event WHERE sequence IN (
             SELECT sequence FROM oldest WHERE sequence < coalesce((SELECT sequence FROM kept), 9223372036854775807)
           ) RETURNING sequence, count
         ), noted AS (
           INSERT INTO {s}.deployment (name, value) SELECT $4, max(sequence * $5 + count - 1) FROM dropped HAVING count(*) > 0
           ON CONFLICT (name) DO UPDATE SET value = greatest(deployment.value, excluded.value)
         )
         SELECT coalesce(sum(count), 0)::bigint FROM dropped",
    )
    .with(before.0)
    .with(until.cast_signed())
    .with(i64::try_from(limit).unwrap_or(i64::MAX))
    .with(TRIMMED)
    .with(NUMBERS.cast_signed())
}
