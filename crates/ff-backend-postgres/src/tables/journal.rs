//! The journal, who owns it, and who must not be kept in the dark.

use std::time::Duration;

use ff_core::Result;
use tokio_postgres::Row;

use super::{cell, number};
use crate::session::Step;

/// Milliseconds since 1970, by the clock of the server.
const NOW: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// What stands beside the journal.
#[derive(Debug)]
pub(crate) struct Found {
    /// None after a crash of the server.
    pub(crate) owner: Option<i64>,
    /// For how long a former owner may still answer from its memory.
    pub(crate) quiet: Duration,
    pub(crate) settled: u64,
    pub(crate) has_guests: bool,
    pub(crate) has_lines: bool,
}

/// Asks for that.
pub(crate) fn find() -> Step {
    Step::new(format!(
        "SELECT (SELECT owner FROM {{s}}.reign), (SELECT quiet_until - {NOW} FROM {{s}}.reign), value,
           EXISTS (SELECT FROM {{s}}.guest), EXISTS (SELECT FROM {{s}}.journal)
         FROM {{s}}.deployment WHERE name = 'journal_settled'"
    ))
}

impl Found {
    /// The row of [`find`].
    pub(crate) fn read(row: &Row) -> Result<Self> {
        let quiet: Option<i64> = cell(row, 1)?;
        Ok(Self {
            owner: cell(row, 0)?,
            quiet: Duration::from_millis(quiet.and_then(|ms| ms.try_into().ok()).unwrap_or_default()),
            settled: number(cell(row, 2)?)?,
            has_guests: cell(row, 3)?,
            has_lines: cell(row, 4)?,
        })
    }
}

/// Gives a row if this is the owner.
pub(crate) fn is_owner(owner: i64) -> Step {
    Step::new("SELECT 1 FROM {s}.reign WHERE owner = $1").with(owner)
}

/// All lines, in order.
pub(crate) fn lines() -> Step {
    Step::new("SELECT string_agg(bytes, '' ORDER BY part) FROM {s}.journal GROUP BY number ORDER BY number")
}

/// A line as rows of so many bytes that none of them is moved out of the table.
pub(crate) fn in_parts(line: &[u8]) -> Vec<Vec<u8>> {
    line.chunks(8_000).map(<[u8]>::to_vec).collect()
}

/// Removes all lines.
pub(crate) fn clear() -> Step {
    Step::new("DELETE FROM {s}.journal")
}

/// Removes lines after one, up to another.
pub(crate) fn drop_lines(after: u64, until: u64) -> Step {
    Step::new("DELETE FROM {s}.journal WHERE number > $1 AND number <= $2")
        .with(after.cast_signed())
        .with(until.cast_signed())
}

/// Notes that executions born up to this one are in their table.
pub(crate) fn mark(settled: u64) -> Step {
    Step::new("UPDATE {s}.deployment SET value = $1 WHERE name = 'journal_settled'").with(settled.cast_signed())
}

/// Makes somebody the owner, or nobody. For a while a former one may still answer from its memory.
pub(crate) fn appoint(owner: i64, quiet: Duration) -> Step {
    Step::new(format!(
        "WITH former AS (DELETE FROM {{s}}.reign) INSERT INTO {{s}}.reign (owner, quiet_until) VALUES ($1, {NOW} + $2)"
    ))
    .with(owner)
    .with(milliseconds(quiet))
}

/// Removes guests whose time is over, and one that comes again.
pub(crate) fn forget_guests(again: i64) -> Step {
    Step::new(format!("DELETE FROM {{s}}.guest WHERE id = $1 OR until <= {NOW}")).with(again)
}

/// A guest is here for a while.
pub(crate) fn receive_guest(id: i64, stay: Duration) -> Step {
    Step::new(format!("INSERT INTO {{s}}.guest (id, until) VALUES ($1, {NOW} + $2)")).with(id).with(milliseconds(stay))
}

/// A guest stays for another while; gives no row if it was forgotten, and else whether it is the only one.
pub(crate) fn stay(id: i64, stay: Duration) -> Step {
    Step::new(format!(
        "UPDATE {{s}}.guest SET until = {NOW} + $2 WHERE id = $1
         RETURNING NOT EXISTS (SELECT FROM {{s}}.guest other WHERE other.id <> $1 AND other.until > {NOW})"
    ))
    .with(id)
    .with(milliseconds(stay))
}

/// A guest leaves.
pub(crate) fn leave(id: i64) -> Step {
    Step::new("DELETE FROM {s}.guest WHERE id = $1").with(id)
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
