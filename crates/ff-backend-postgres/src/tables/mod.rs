//! The tables, one file each: statements and nothing else.

pub(crate) mod created;
pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod execution;
pub(crate) mod journal;
pub(crate) mod record;

use std::sync::Arc;

use ff_core::ids::ExecutionId;
use ff_core::{EngineError, Result};
use ff_engine::codec::decode_key;
use ff_engine::hash::HashMap;
use ff_engine::index::{Bounds, Index, Position};
use ff_engine::key::Key;
use tokio_postgres::Row;

use crate::address::{Address, Cell, Held, Satellite, Stored};
use crate::error::{corrupt, explain};
use crate::indexes::Place;
use crate::session::{Frame, Session, Step};

/// What rows hold, by where they are; none for those that are not there.
pub(crate) type Facts = HashMap<Address, Option<Arc<Stored>>>;

/// What stands in an index: where, which record, and what came along of its row.
#[derive(Clone, Debug)]
pub(crate) struct Entered {
    pub(crate) position: Position,
    pub(crate) key: Key,
    pub(crate) along: Along,
}

impl Entered {
    /// Its row, if that came along.
    pub(crate) const fn row(&self) -> Option<&Arc<Stored>> {
        match &self.along {
            Along::Row(stored) => Some(stored),
            Along::Nothing | Along::Version(_) => None,
        }
    }
}

/// What came along of a row.
#[derive(Clone, Debug)]
pub(crate) enum Along {
    Nothing,
    Version(i64),
    Row(Arc<Stored>),
}

/// How much of the rows is to come along with a list. Lists that are not of executions bring what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bring {
    Nothing,
    Versions,
    Rows,
}

/// Reads rows, in one round trip.
pub(crate) async fn load(session: &Session, addresses: &[Address]) -> Result<Facts> {
    let mut facts: Facts = addresses.iter().map(|address| (address.clone(), None)).collect();
    let (executions, records) = split(addresses);
    let mut steps = Vec::new();
    if !executions.is_empty() {
        steps.push(execution::load(&executions));
    }
    if !records.is_empty() {
        steps.push(record::load(&records));
    }
    let mut answers = session.run(Frame::None, &steps).await.map_err(explain)?.into_iter();
    if !executions.is_empty() {
        for row in answers.next().unwrap_or_default() {
            let (id, stored) = execution::read(&row, 0)?;
            facts.insert(Address::Execution(id), Some(Arc::new(stored)));
        }
    }
    for row in answers.next().unwrap_or_default() {
        let (key, stored) = record::read(&row)?;
        facts.insert(Address::Record(key), Some(Arc::new(stored)));
    }
    Ok(facts)
}

/// Whether one statement reads all of these.
pub(crate) fn are_in_one_table(addresses: &[Address]) -> bool {
    addresses.iter().all(|address| matches!(address, Address::Execution(_)))
        || addresses.iter().all(|address| matches!(address, Address::Record(_)))
}

fn split(addresses: &[Address]) -> (Vec<ExecutionId>, Vec<Key>) {
    let (mut executions, mut records) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            Address::Execution(id) => executions.push(*id),
            Address::Record(key) => records.push(key.clone()),
        }
    }
    (executions, records)
}

/// The statement that lists an index.
pub(crate) fn list(index: &Index, bounds: &Bounds, bring: Bring) -> Step {
    match Place::of(index) {
        Place::Columns(columns) => execution::list(&columns, bounds, bring),
        Place::Keys(range) => record::list(&range, bounds),
        Place::Rows(list) => entry::list(&list, bounds),
    }
}

/// What a statement of [`list`] found. The one record of a list that stands in the row of its execution is not among it.
pub(crate) fn listed(index: &Index, rows: &[Row], bring: Bring) -> Result<Vec<Entered>> {
    match Place::of(index) {
        Place::Columns(_) => rows.iter().map(|row| execution::entered(row, bring)).collect(),
        Place::Keys(range) => {
            let mut out = Vec::with_capacity(rows.len());
            for row in rows {
                let bytes: &[u8] = cell(row, 0)?;
                if let Some(position) = range.position(bytes) {
                    let (key, stored) = record::read(row)?;
                    out.push(Entered { position, key, along: Along::Row(Arc::new(stored)) });
                }
            }
            Ok(out)
        }
        Place::Rows(_) => rows.iter().map(entry::entered).collect(),
    }
}

/// The statement that counts an index, with the address of a row that may hold one more.
pub(crate) fn count(index: &Index) -> (Step, Option<Key>) {
    match Place::of(index) {
        Place::Columns(columns) => (execution::count(&columns), None),
        Place::Keys(range) => (record::count(&range), range.first.map(|(_, key)| key)),
        Place::Rows(list) => (entry::count(&list), None),
    }
}

/// A column of a row.
pub(crate) fn cell<'r, T: postgres_types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T> {
    row.try_get(at).map_err(|error| corrupt(format_args!("column {at} of a row: {error}")))
}

/// A key that a row refers to.
pub(crate) fn readable(bytes: &[u8]) -> Result<Key> {
    decode_key(bytes).ok_or_else(|| corrupt("a key cannot be read"))
}

/// What a satellite's key holds, as far as the row of its execution tells.
pub(crate) enum Beside<'r> {
    /// Nothing.
    Nothing,
    /// This.
    Held(&'r Held),
    /// What its own row holds.
    OwnRow,
}

/// Where the record of a satellite is.
pub(crate) fn beside(row: Option<&Stored>, satellite: Satellite) -> Beside<'_> {
    match row.map(|row| &row.cells[satellite as usize]) {
        Some(Cell::Absent) => Beside::Nothing,
        Some(Cell::Here(held)) => Beside::Held(held),
        // Without its execution it has no row to stand in.
        Some(Cell::Elsewhere) | None => Beside::OwnRow,
    }
}

/// A number that cannot be negative.
pub(crate) fn number(value: i64) -> Result<u64, EngineError> {
    u64::try_from(value).map_err(|_| corrupt("a number is negative"))
}
