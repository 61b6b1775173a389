//! Records that stand in the row of their execution: what nearly every execution has or is asked for, while it is small.

use ff_core::Result;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_engine::codec::decode_record;
use ff_engine::key::{Key, Name};
use ff_engine::records::Record;
use rusqlite::Connection;

use super::{execution, record};
use crate::young::View;

/// Bytes of a record that stands in the row; larger ones would be copied with every change of the execution.
pub(crate) const ROW_BYTES_MAX: usize = 1_024;

/// The columns, in the order of [`Satellite`].
pub(crate) const COLUMNS: [&str; 6] =
    ["definition", "payload", "outcome", "first_attempt", "first_stream", "claim_grant"];

/// Which record of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Satellite {
    Definition,
    Payload,
    Outcome,
    FirstAttempt,
    FirstStream,
    ClaimGrant,
}

/// What a column holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Cell {
    /// There is no such record.
    #[default]
    Absent,
    /// The record, as it is stored.
    Here(Vec<u8>),
    /// The record, as it was written; never a cell that is to be written.
    Known(Record),
    /// It stands in the table of records.
    Elsewhere,
}

impl Cell {
    /// The cell of a stored column.
    pub(crate) fn read(column: Option<Vec<u8>>) -> Self {
        match column {
            None => Self::Absent,
            Some(bytes) if bytes.is_empty() => Self::Elsewhere,
            Some(bytes) => Self::Here(bytes),
        }
    }

    /// Whether the record stands in the row.
    pub(crate) const fn is_here(&self) -> bool {
        matches!(self, Self::Here(_) | Self::Known(_))
    }
}

impl Satellite {
    pub(crate) const ALL: [Self; 6] =
        [Self::Definition, Self::Payload, Self::Outcome, Self::FirstAttempt, Self::FirstStream, Self::ClaimGrant];

    /// The column of a record, if it is of a kind that has one.
    pub(crate) const fn of(key: &Key) -> Option<(ExecutionId, Self)> {
        match key.name {
            Name::Definition(id) => Some((id, Self::Definition)),
            Name::Payload(id) => Some((id, Self::Payload)),
            Name::Outcome(id) => Some((id, Self::Outcome)),
            Name::Attempt(id, AttemptIndex(0)) => Some((id, Self::FirstAttempt)),
            Name::StreamHead(id, AttemptIndex(0)) => Some((id, Self::FirstStream)),
            Name::Grant(id) => Some((id, Self::ClaimGrant)),
            _ => None,
        }
    }

    /// The key of an execution's record.
    pub(crate) const fn key(self, id: ExecutionId) -> Key {
        match self {
            Self::Definition => Key::definition(id),
            Self::Payload => Key::payload(id),
            Self::Outcome => Key::outcome(id),
            Self::FirstAttempt => Key::attempt(id, AttemptIndex(0)),
            Self::FirstStream => Key::stream_head(id, AttemptIndex(0)),
            Self::ClaimGrant => Key::grant(id),
        }
    }

    pub(crate) const fn column(self) -> &'static str {
        COLUMNS[self as usize]
    }
}

/// The record of a cell.
pub(crate) fn decode(db: &Connection, key: &Key, cell: &Cell) -> Result<Option<Record>> {
    match cell {
        Cell::Absent => Ok(None),
        Cell::Here(bytes) => decode_record(key, bytes).map(Some),
        Cell::Known(record) => Ok(Some(record.clone())),
        Cell::Elsewhere => record::load(db, key),
    }
}

/// The record, wherever it stands. Without its execution it has no row to stand in.
pub(crate) fn load(view: View<'_>, id: ExecutionId, satellite: Satellite) -> Result<Option<Record>> {
    let key = satellite.key(id);
    if let Some(young) = view.young.get(id) {
        return decode(view.db, &key, &young.cells[satellite as usize]);
    }
    let sql = format!("SELECT {} FROM execution WHERE partition = ? AND uuid = ?", satellite.column());
    match execution::select(view.db, &sql, id, |row| row.get(0))? {
        Some(column) => decode(view.db, &key, &Cell::read(column)),
        None => record::load(view.db, &key),
    }
}
