//! Where records stand in the indexes that have rows of their own.

use ff_core::Result;
use ff_engine::codec::encode_index;
use ff_engine::index::{Bounds, Entry, Position};
use tokio_postgres::Row;

use super::{Along, Entered, cell, readable};
use crate::session::Step;
use crate::short::short;

/// The entries of a list within bounds, with the keys they refer to.
pub(crate) fn list(list: &[u8], bounds: &Bounds) -> Step {
    let order = if bounds.reverse { "DESC" } else { "ASC" };
    // No entry stands at the lowest number without a tie, nor at the highest one.
    let (low, low_tie) = bounds.after.as_ref().map_or((i64::MIN, &[][..]), |at| (at.major, &at.tie));
    let (high, high_tie) = bounds.until.as_ref().map_or((i64::MAX, &[0xff; 8][..]), |at| (at.major, &at.tie));
    Step::new(format!(
        "SELECT major, tie, key FROM {{s}}.entry
         WHERE list = $1 AND (major, tie) > ($2, $3) AND (major, tie) <= ($4, $5)
         ORDER BY major {order}, tie {order} LIMIT $6"
    ))
    .with(list.to_vec())
    .with(low)
    .with(low_tie.to_vec())
    .with(high)
    .with(high_tie.to_vec())
    .with(i64::try_from(bounds.limit).unwrap_or(i64::MAX))
}

/// One row of [`list`].
pub(crate) fn entered(row: &Row) -> Result<Entered> {
    let tie: &[u8] = cell(row, 1)?;
    Ok(Entered { position: Position::new(cell(row, 0)?, tie), key: readable(cell(row, 2)?)?, along: Along::Nothing })
}

/// How many entries a list has.
pub(crate) fn count(list: &[u8]) -> Step {
    Step::new("SELECT count(*) FROM {s}.entry WHERE list = $1").with(list.to_vec())
}

/// One page of all entries after a place, with the keys they refer to.
pub(crate) fn page(after: &RawEntry, limit: i64) -> Step {
    Step::new(
        "SELECT list, major, tie, key FROM {s}.entry WHERE (list, major, tie) > ($1, $2, $3)
         ORDER BY list, major, tie LIMIT $4",
    )
    .with(after.list.clone())
    .with(after.major)
    .with(after.tie.clone())
    .with(limit)
}

/// An entry as it is stored, ordered as the table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RawEntry {
    pub(crate) list: Vec<u8>,
    pub(crate) major: i64,
    pub(crate) tie: Vec<u8>,
}

impl RawEntry {
    /// The stored form of an entry.
    pub(crate) fn of(entry: &Entry) -> Self {
        Self { list: short(encode_index(&entry.index)), major: entry.position.major, tie: entry.position.tie.to_vec() }
    }

    /// One row of [`page`], with the key it refers to.
    pub(crate) fn read(row: &Row) -> Result<(Self, Vec<u8>)> {
        Ok((Self { list: cell(row, 0)?, major: cell(row, 1)?, tie: cell(row, 2)? }, cell(row, 3)?))
    }
}

/// Rows to be added or removed, by column.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    lists: Vec<Vec<u8>>,
    majors: Vec<i64>,
    ties: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
}

impl Rows {
    pub(crate) fn push(&mut self, entry: RawEntry, key: &[u8]) {
        self.lists.push(entry.list);
        self.majors.push(entry.major);
        self.ties.push(entry.tie);
        self.keys.push(key.to_vec());
    }

    pub(crate) fn len(&self) -> usize {
        self.lists.len()
    }

    pub(crate) fn insert(self) -> Option<Step> {
        let is_empty = self.lists.is_empty();
        let step = Step::new(
            "INSERT INTO {s}.entry (list, major, tie, key)
             SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[])
             ON CONFLICT (list, major, tie) DO UPDATE SET key = excluded.key",
        )
        .with(self.lists)
        .with(self.majors)
        .with(self.ties)
        .with(self.keys);
        Some(step).filter(|_| !is_empty)
    }

    /// Adds the entries that are missing or refer to other keys; gives a row for each. Those that are as they should be are left alone:
    /// a conflict alone would lock and so write them.
    pub(crate) fn restore(self) -> Option<Step> {
        let is_empty = self.lists.is_empty();
        let step = Step::new(
            "INSERT INTO {s}.entry (list, major, tie, key)
             SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[]) AS w (list, major, tie, key)
             WHERE NOT EXISTS (
               SELECT FROM {s}.entry i WHERE i.list = w.list AND i.major = w.major AND i.tie = w.tie AND i.key = w.key
             )
             ON CONFLICT (list, major, tie) DO UPDATE SET key = excluded.key
             RETURNING 1",
        )
        .with(self.lists)
        .with(self.majors)
        .with(self.ties)
        .with(self.keys);
        Some(step).filter(|_| !is_empty)
    }

    /// Removes the entries that still refer to their keys.
    pub(crate) fn delete(self) -> Option<Step> {
        let is_empty = self.lists.is_empty();
        let step = Step::new(
            "DELETE FROM {s}.entry e USING unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bytea[]) AS w (list, major, tie, key)
             WHERE e.list = w.list AND e.major = w.major AND e.tie = w.tie AND e.key = w.key",
        )
        .with(self.lists)
        .with(self.majors)
        .with(self.ties)
        .with(self.keys);
        Some(step).filter(|_| !is_empty)
    }
}
