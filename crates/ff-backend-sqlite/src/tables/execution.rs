//! Executions, with the columns that their hot indexes sort by.

use std::sync::Arc;

use ff_core::Result;
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_engine::codec::{decode_record, encode_queue};
use ff_engine::index::{Bounds, DueKind, Entry, Index, Position};
use ff_engine::key::Key;
use ff_engine::records::Record;
use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params, params_from_iter};

use super::number;
use super::satellite::{self, Cell, Satellite};
use crate::error::{corrupt, explain};
use crate::indexes::{Columns, position_of};

/// What the columns of a row hold, as its index entries say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shadow {
    namespace: Option<Name<Namespace>>,
    lane: Option<Name<LaneId>>,
    kind: Option<String>,
    state: Option<&'static str>,
    created_at: Option<i64>,
    queue: Option<Vec<u8>>,
    rank: Option<i64>,
    lease_expires_at: Option<i64>,
    completed_at: Option<i64>,
    sweep_from: Option<i64>,
}

/// A name as a column holds it.
#[derive(Clone, Debug, PartialEq)]
struct Name<T>(T);

impl ToSql for Name<Namespace> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.as_str().to_sql()
    }
}

impl ToSql for Name<LaneId> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.as_str().to_sql()
    }
}

/// The columns of a shadow, in the order of [`Shadow::values`].
const COLUMNS: [&str; 10] = [
    "namespace",
    "lane",
    "kind",
    "state",
    "created_at",
    "queue",
    "rank",
    "lease_expires_at",
    "completed_at",
    "sweep_from",
];

impl Shadow {
    /// The columns for these entries.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut shadow = Self::default();
        for Entry { index, position } in entries {
            match index {
                Index::CreatedIn(namespace) => shadow.namespace = Some(Name(namespace.clone())),
                Index::Created => shadow.created_at = Some(-position.major),
                Index::LaneState(lane, state) => {
                    shadow.lane = Some(Name(lane.clone()));
                    shadow.state = Some(state.as_str());
                }
                Index::KindState(kind, _) => shadow.kind = Some(kind.clone()),
                Index::Eligible(namespace, lane, class) => {
                    shadow.queue = Some(encode_queue(namespace, lane, class));
                    shadow.rank = Some(position.major);
                }
                Index::Due(DueKind::LeaseExpiry) => shadow.lease_expires_at = Some(position.major),
                Index::TerminalIn(..) => shadow.completed_at = Some(position.major),
                Index::Terminal => shadow.sweep_from = Some(position.major),
                _ => {}
            }
        }
        shadow
    }

    fn values(&self) -> [&dyn ToSql; COLUMNS.len()] {
        [
            &self.namespace,
            &self.lane,
            &self.kind,
            &self.state,
            &self.created_at,
            &self.queue,
            &self.rank,
            &self.lease_expires_at,
            &self.completed_at,
            &self.sweep_from,
        ]
    }

    /// Which columns differ, by bit.
    fn difference(&self, other: &Self) -> u32 {
        let same = [
            self.namespace == other.namespace,
            self.lane == other.lane,
            self.kind == other.kind,
            self.state == other.state,
            self.created_at == other.created_at,
            self.queue == other.queue,
            self.rank == other.rank,
            self.lease_expires_at == other.lease_expires_at,
            self.completed_at == other.completed_at,
            self.sweep_from == other.sweep_from,
        ];
        same.iter().enumerate().filter(|(_, same)| !**same).fold(0, |mask, (bit, _)| mask | 1 << bit)
    }
}

pub(crate) fn address(id: ExecutionId) -> (i64, [u8; 16]) {
    (i64::from(id.partition().index()), *id.uuid().as_bytes())
}

fn id_of(row: &Row<'_>, partition: usize, uuid: usize) -> rusqlite::Result<ExecutionId> {
    let number: u16 = row.get(partition)?;
    let uuid: [u8; 16] = row.get(uuid)?;
    let mut bytes = [0; 18];
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    bytes[2..].copy_from_slice(&uuid);
    Ok(ExecutionId::from_bytes(bytes))
}

/// A row: the execution and what stands beside it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) row: i64,
    /// The execution, or why it cannot be read.
    pub(crate) record: Result<Record>,
    /// In the order of [`Satellite`].
    pub(crate) cells: [Cell; Satellite::ALL.len()],
    /// The entries of the execution, where they are known.
    pub(crate) entries: Option<Arc<[Entry]>>,
}

impl Stored {
    /// The number of no row.
    pub(crate) const NO_ROW: i64 = 0;

    /// An execution that has no row yet.
    pub(crate) fn missing() -> Self {
        let record = Err(ff_core::EngineError::not_found(ff_core::error::Entity::Execution));
        Self { row: Self::NO_ROW, record, cells: Default::default(), entries: None }
    }
}

impl Stored {
    /// In which indexes the execution stands.
    pub(crate) fn entries(&self) -> Arc<[Entry]> {
        match (&self.entries, &self.record) {
            (Some(entries), _) => Arc::clone(entries),
            (None, Ok(record)) => record.entries().into(),
            (None, Err(_)) => Arc::new([]),
        }
    }
}

const WHOLE_ROW: &str = "id, body, definition, payload, outcome, first_attempt, first_stream, claim_grant";

fn whole_row(id: ExecutionId, row: &Row<'_>, from: usize) -> rusqlite::Result<Stored> {
    let body = row.get_ref(from + 1)?.as_blob().unwrap_or_default();
    let mut cells: [Cell; Satellite::ALL.len()] = Default::default();
    for (at, cell) in cells.iter_mut().enumerate() {
        *cell = Cell::read(row.get(from + 2 + at)?);
    }
    Ok(Stored { row: row.get(from)?, record: decode_record(&Key::execution(id), body), cells, entries: None })
}

/// The row of an execution.
pub(crate) fn load(db: &Connection, id: ExecutionId) -> Result<Option<Stored>> {
    const SQL: &str = "SELECT id, body, definition, payload, outcome, first_attempt, first_stream, claim_grant
                       FROM execution WHERE partition = ? AND uuid = ?";
    let (partition, uuid) = address(id);
    db.prepare_cached(SQL)
        .and_then(|mut statement| statement.query_row(params![partition, uuid], |row| whole_row(id, row, 0)).optional())
        .map_err(explain)
}

/// The execution alone.
pub(crate) fn load_record(db: &Connection, id: ExecutionId) -> Result<Option<Record>> {
    let (partition, uuid) = address(id);
    let found = db
        .prepare_cached("SELECT body FROM execution WHERE partition = ? AND uuid = ?")
        .and_then(|mut statement| {
            statement
                .query_row(params![partition, uuid], |row| {
                    let body = row.get_ref(0)?.as_blob().unwrap_or_default();
                    Ok(decode_record(&Key::execution(id), body))
                })
                .optional()
        })
        .map_err(explain)?;
    found.transpose()
}

/// What is to change in a row; what is not named stays as it is, and so do the indexes over it.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// The record, and the columns before and after.
    pub(crate) execution: Option<(Vec<u8>, Shadow, Shadow)>,
    /// What each column is to hold; an empty one says that the record stands elsewhere.
    pub(crate) cells: [Option<Option<Vec<u8>>>; Satellite::ALL.len()],
}

impl Change {
    /// Whether nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.execution.is_none() && self.cells.iter().all(Option::is_none)
    }

    /// The columns that change, with their new values.
    fn columns(&self) -> Vec<(&'static str, &dyn ToSql)> {
        let mut columns: Vec<(&'static str, &dyn ToSql)> = Vec::with_capacity(8);
        if let Some((body, old, new)) = &self.execution {
            columns.push(("body", body));
            let changed = old.difference(new);
            let values = new.values();
            let named = COLUMNS.into_iter().zip(values).enumerate();
            columns.extend(named.filter(|(bit, _)| changed & (1 << bit) != 0).map(|(_, column)| column));
        }
        for (at, cell) in self.cells.iter().enumerate() {
            if let Some(cell) = cell {
                columns.push((satellite::COLUMNS[at], cell));
            }
        }
        columns
    }
}

/// Adds an execution with what stands beside it; says in which row.
pub(crate) fn insert(db: &Connection, id: ExecutionId, change: &Change) -> rusqlite::Result<i64> {
    let (partition, uuid) = address(id);
    let columns = change.columns();
    let mut sql = String::with_capacity(240);
    sql.push_str("INSERT INTO execution (partition, uuid");
    for (name, _) in &columns {
        sql.push_str(", ");
        sql.push_str(name);
    }
    sql.push_str(") VALUES (?, ?");
    sql.push_str(&", ?".repeat(columns.len()));
    sql.push(')');
    let fixed: [&dyn ToSql; 2] = [&partition, &uuid];
    let values = columns.iter().map(|(_, value)| *value);
    db.prepare_cached(&sql)?.insert(params_from_iter(fixed.into_iter().chain(values)))
}

/// Changes a row; says which.
pub(crate) fn update(db: &Connection, row: i64, change: &Change) -> rusqlite::Result<i64> {
    let columns = change.columns();
    let mut sql = String::with_capacity(160);
    for (name, _) in &columns {
        sql.push_str(if sql.is_empty() { "UPDATE execution SET " } else { ", " });
        sql.push_str(name);
        sql.push_str(" = ?");
    }
    sql.push_str(" WHERE id = ?");
    let last: [&dyn ToSql; 1] = [&row];
    let values = columns.iter().map(|(_, value)| *value);
    db.prepare_cached(&sql)?.execute(params_from_iter(values.chain(last)))?;
    Ok(row)
}

/// Removes an execution and what stands beside it.
pub(crate) fn delete(db: &Connection, row: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM execution WHERE id = ?")?.execute([row]).map(drop)
}

/// Executions in the order of an index.
pub(crate) fn list(db: &Connection, columns: &Columns, bounds: &Bounds) -> Result<Vec<(Position, Record)>> {
    let (query, values) = columns.query(bounds);
    let sql = format!("SELECT {}, partition, uuid, body{query}", columns.number());
    let mut statement = db.prepare_cached(&sql).map_err(explain)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(explain)?;
    let mut out = Vec::new();
    while let Some(row) = rows.next().map_err(explain)? {
        let id = id_of(row, 1, 2).map_err(explain)?;
        let body = row.get_ref(3).map_err(explain)?;
        let bytes = body.as_blob().map_err(|_| corrupt("an execution has no bytes"))?;
        let record = decode_record(&Key::execution(id), bytes)?;
        out.push((position_of(row.get(0).map_err(explain)?, id), record));
    }
    Ok(out)
}

/// Keys of executions in the order of an index.
pub(crate) fn keys(db: &Connection, columns: &Columns, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
    let (query, values) = columns.query(bounds);
    let sql = format!("SELECT {}, partition, uuid{query}", columns.number());
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached(&sql)?
            .query_map(params_from_iter(values), |row| {
                let id = id_of(row, 1, 2)?;
                Ok((position_of(row.get(0)?, id), Key::execution(id)))
            })?
            .collect()
    };
    query().map_err(explain)
}

/// How many executions stand in an index.
pub(crate) fn count(db: &Connection, columns: &Columns) -> Result<u64> {
    let sql = format!("SELECT count(*) FROM execution WHERE {}", columns.filter);
    db.prepare_cached(&sql)
        .and_then(|mut statement| statement.query_row(params_from_iter(&columns.values), |row| row.get(0)))
        .map(number)
        .map_err(explain)
}

/// The columns of an execution as they are stored, to compare with what its record says.
pub(crate) fn stored_values(db: &Connection, id: ExecutionId) -> Result<Option<Vec<Value>>> {
    let (partition, uuid) = address(id);
    let sql = format!("SELECT {} FROM execution WHERE partition = ? AND uuid = ?", COLUMNS.join(", "));
    db.prepare_cached(&sql)
        .and_then(|mut statement| {
            statement
                .query_row(params![partition, uuid], |row| (0..COLUMNS.len()).map(|at| row.get(at)).collect())
                .optional()
        })
        .map_err(explain)
}

/// How many of an execution's index entries are missing or wrong, by what its columns hold.
pub(crate) fn wrong_columns(stored: &[Value], shadow: &Shadow) -> usize {
    let wanted = shadow.values();
    stored.iter().zip(wanted).filter(|(stored, wanted)| !holds(stored, *wanted)).count()
}

fn holds(stored: &Value, wanted: &dyn ToSql) -> bool {
    let wanted = match wanted.to_sql() {
        Ok(ToSqlOutput::Borrowed(value)) => Value::try_from(value).ok(),
        Ok(ToSqlOutput::Owned(value)) => Some(value),
        _ => None,
    };
    wanted.as_ref().is_some_and(|wanted| ValueRef::from(stored) == ValueRef::from(wanted))
}

/// Writes the columns of all indexes anew.
pub(crate) fn restore(db: &Connection, id: ExecutionId, shadow: &Shadow) -> rusqlite::Result<()> {
    let (partition, uuid) = address(id);
    let columns = COLUMNS.map(|column| format!("{column} = ?")).join(", ");
    let sql = format!("UPDATE execution SET {columns} WHERE partition = ? AND uuid = ?");
    let last: [&dyn ToSql; 2] = [&partition, &uuid];
    db.prepare_cached(&sql)?.execute(params_from_iter(shadow.values().into_iter().chain(last))).map(drop)
}

/// One page of all rows after one.
pub(crate) fn page(db: &Connection, after: i64, limit: i64) -> Result<Vec<(ExecutionId, Stored)>> {
    let sql = format!("SELECT partition, uuid, {WHOLE_ROW} FROM execution WHERE id > ? ORDER BY id LIMIT ?");
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached(&sql)?
            .query_map(params![after, limit], |row| {
                let id = id_of(row, 0, 1)?;
                Ok((id, whole_row(id, row, 2)?))
            })?
            .collect()
    };
    query().map_err(explain)
}
