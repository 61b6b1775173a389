//! Executions, with the columns that their hot indexes sort by.

use std::sync::Arc;

use ff_core::Result;
use ff_core::ids::{ExecutionId, ExecutionKind, LaneId, Namespace};
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
use crate::young::{View, Young};

/// What the columns of a row hold, as its index entries say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shadow {
    namespace: Option<Name<Namespace>>,
    lane: Option<Name<LaneId>>,
    kind: Option<Name<ExecutionKind>>,
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

impl ToSql for Name<ExecutionKind> {
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
                Index::KindState(kind, _) => shadow.kind = Some(Name(kind.clone())),
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

    /// Whether it waits in a queue.
    pub(crate) const fn is_queued(&self) -> bool {
        self.queue.is_some()
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
    let (number, uuid): (u16, [u8; 16]) = (row.get(partition)?, row.get(uuid)?);
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
    pub(crate) entries: Option<Arc<Vec<Entry>>>,
}

impl Stored {
    /// The number of no row.
    pub(crate) const NO_ROW: i64 = 0;

    /// An execution that has no row yet.
    pub(crate) fn missing() -> Self {
        let record = Err(ff_core::EngineError::not_found(ff_core::error::Entity::Execution));
        Self { row: Self::NO_ROW, record, cells: Default::default(), entries: None }
    }

    /// In which indexes the execution stands.
    pub(crate) fn entries(&self) -> Arc<Vec<Entry>> {
        match (&self.entries, &self.record) {
            (Some(entries), _) => Arc::clone(entries),
            (None, Ok(record)) => Arc::new(record.entries()),
            (None, Err(_)) => Arc::default(),
        }
    }
}

/// The columns that [`whole_row`] reads.
macro_rules! whole_row {
    () => {
        "id, body, definition, payload, outcome, first_attempt, first_stream, claim_grant"
    };
}

fn whole_row(id: ExecutionId, row: &Row<'_>, from: usize) -> rusqlite::Result<Stored> {
    let body = row.get_ref(from + 1)?.as_blob().unwrap_or_default();
    let mut cells: [Cell; Satellite::ALL.len()] = Default::default();
    for (at, cell) in cells.iter_mut().enumerate() {
        *cell = Cell::read(row.get(from + 2 + at)?);
    }
    Ok(Stored { row: row.get(from)?, record: decode_record(&Key::execution(id), body), cells, entries: None })
}

/// An execution with what stands beside it.
pub(crate) fn load(view: View<'_>, id: ExecutionId) -> Result<Option<Stored>> {
    match view.young.get(id) {
        Some(young) => Ok(Some(young.clone())),
        None => load_settled(view.db, id),
    }
}

/// The row of an execution.
pub(crate) fn load_settled(db: &Connection, id: ExecutionId) -> Result<Option<Stored>> {
    select(db, concat!("SELECT ", whole_row!(), " FROM execution WHERE partition = ? AND uuid = ?"), id, |row| {
        whole_row(id, row, 0)
    })
}

/// The execution alone.
pub(crate) fn load_record(view: View<'_>, id: ExecutionId) -> Result<Option<Record>> {
    if let Some(young) = view.young.get(id) {
        return young.record.clone().map(Some);
    }
    let found = select(view.db, "SELECT body FROM execution WHERE partition = ? AND uuid = ?", id, |row| {
        let body = row.get_ref(0)?.as_blob().unwrap_or_default();
        Ok(decode_record(&Key::execution(id), body))
    })?;
    found.transpose()
}

/// What a statement finds of an execution's row.
pub(super) fn select<T>(
    db: &Connection,
    sql: &str,
    id: ExecutionId,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>> {
    let (partition, uuid) = address(id);
    db.prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(params![partition, uuid], read).optional())
        .map_err(explain)
}

/// What is to change in a row; what is not named stays as it is.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Change {
    /// The record.
    pub(crate) body: Option<Vec<u8>>,
    /// What each column is to hold; an empty one says that the record stands elsewhere.
    pub(crate) cells: [Option<Option<Vec<u8>>>; Satellite::ALL.len()],
}

impl Change {
    /// Whether nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.body.is_none() && self.cells.iter().all(Option::is_none)
    }
}

/// Adds a row: an execution with what stands beside it.
pub(crate) fn insert(
    db: &Connection,
    row: i64,
    id: ExecutionId,
    shadow: &Shadow,
    body: &[u8],
    cells: &[Option<Vec<u8>>; Satellite::ALL.len()],
) -> rusqlite::Result<()> {
    const SQL: &str = "INSERT INTO execution (id, partition, uuid, namespace, lane, kind, state, created_at, queue, rank, \
                       lease_expires_at, completed_at, sweep_from, body, definition, payload, outcome, first_attempt, \
                       first_stream, claim_grant) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let (partition, uuid) = address(id);
    let head: [&dyn ToSql; 3] = [&row, &partition, &uuid];
    let beside = cells.iter().map(|cell| cell as &dyn ToSql);
    let values = head.into_iter().chain(shadow.values()).chain([&body as &dyn ToSql]).chain(beside);
    db.prepare_cached(SQL)?.execute(params_from_iter(values)).map(drop)
}

/// Changes a row, from one set of indexes to another; indexes over what stays as it is are not touched.
pub(crate) fn update(db: &Connection, row: i64, change: &Change, old: &Shadow, new: &Shadow) -> rusqlite::Result<()> {
    let mut sql = String::with_capacity(160);
    let mut values: Vec<&dyn ToSql> = Vec::with_capacity(8);
    let mut set = |column: &str, value| {
        sql.push_str(if sql.is_empty() { "UPDATE execution SET " } else { ", " });
        sql.push_str(column);
        sql.push_str(" = ?");
        values.push(value);
    };
    if let Some(body) = &change.body {
        set("body", body);
    }
    let changed = old.difference(new);
    for (bit, (column, value)) in COLUMNS.into_iter().zip(new.values()).enumerate() {
        if changed & (1 << bit) != 0 {
            set(column, value);
        }
    }
    for (column, cell) in satellite::COLUMNS.into_iter().zip(&change.cells) {
        if let Some(cell) = cell {
            set(column, cell);
        }
    }
    sql.push_str(" WHERE id = ?");
    values.push(&row);
    db.prepare_cached(&sql)?.execute(params_from_iter(values)).map(drop)
}

/// Removes an execution and what stands beside it.
pub(crate) fn delete(db: &Connection, row: i64) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM execution WHERE id = ?")?.execute([row]).map(drop)
}

/// Executions in the order of an index.
pub(crate) fn list(
    view: View<'_>,
    index: &Index,
    columns: &Columns,
    bounds: &Bounds,
) -> Result<Vec<(Position, Record)>> {
    let (query, values) = columns.query(bounds);
    let sql = format!("SELECT {}, partition, uuid, body{query}", columns.number());
    let mut statement = view.db.prepare_cached(&sql).map_err(explain)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(explain)?;
    let mut out = Vec::new();
    while let Some(row) = rows.next().map_err(explain)? {
        let id = id_of(row, 1, 2).map_err(explain)?;
        let body = row.get_ref(3).map_err(explain)?;
        let bytes = body.as_blob().map_err(|_| corrupt("an execution has no bytes"))?;
        let record = decode_record(&Key::execution(id), bytes)?;
        out.push((position_of(row.get(0).map_err(explain)?, id), record));
    }
    let mut young = Vec::new();
    for (position, id) in view.young.list(index, bounds) {
        if let Some(found) = view.young.get(id) {
            young.push((position, found.record.clone()?));
        }
    }
    Ok(in_one_order(out, young, bounds))
}

/// Keys of executions in the order of an index.
pub(crate) fn keys(view: View<'_>, index: &Index, columns: &Columns, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
    Ok(with_young_keys(settled_keys(view.db, columns, bounds)?, view.young, index, bounds))
}

/// Keys of executions in the table and of young ones, each within bounds, as one list.
pub(crate) fn with_young_keys(
    settled: Vec<(Position, Key)>,
    young: &Young,
    index: &Index,
    bounds: &Bounds,
) -> Vec<(Position, Key)> {
    let young = young.list(index, bounds).into_iter().map(|(position, id)| (position, Key::execution(id)));
    in_one_order(settled, young.collect(), bounds)
}

/// Keys of the executions in the table.
pub(crate) fn settled_keys(db: &Connection, columns: &Columns, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
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

/// What stands in the table and what is young, each within bounds, as one list.
fn in_one_order<T>(settled: Vec<(Position, T)>, young: Vec<(Position, T)>, bounds: &Bounds) -> Vec<(Position, T)> {
    match (settled.is_empty(), young.is_empty()) {
        (_, true) => return settled,
        (true, false) => return young,
        (false, false) => {}
    }
    let mut all = settled;
    all.extend(young);
    all.sort_by(|(a, _), (b, _)| if bounds.reverse { b.cmp(a) } else { a.cmp(b) });
    all.truncate(bounds.limit);
    all
}

/// How many executions stand in an index.
pub(crate) fn count(view: View<'_>, index: &Index, columns: &Columns) -> Result<u64> {
    let sql = format!("SELECT count(*) FROM execution WHERE {}", columns.filter);
    let settled = view
        .db
        .prepare_cached(&sql)
        .and_then(|mut statement| statement.query_row(params_from_iter(&columns.values), |row| row.get(0)))
        .map_err(explain)?;
    Ok(number(settled) + view.young.count(index))
}

/// The columns of an execution as they are stored, to compare with what its record says.
pub(crate) fn stored_values(db: &Connection, id: ExecutionId) -> Result<Option<Vec<Value>>> {
    let sql = format!("SELECT {} FROM execution WHERE partition = ? AND uuid = ?", COLUMNS.join(", "));
    select(db, &sql, id, |row| (0..COLUMNS.len()).map(|at| row.get(at)).collect())
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

/// The number of the last row.
pub(crate) fn last_row(db: &Connection) -> Result<i64> {
    let last: Option<i64> = db
        .prepare_cached("SELECT max(id) FROM execution")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(explain)?;
    Ok(last.unwrap_or(0))
}

/// One page of all rows after one.
pub(crate) fn page(db: &Connection, after: i64, limit: i64) -> Result<Vec<(ExecutionId, Stored)>> {
    const SQL: &str =
        concat!("SELECT partition, uuid, ", whole_row!(), " FROM execution WHERE id > ? ORDER BY id LIMIT ?");
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached(SQL)?
            .query_map(params![after, limit], |row| {
                let id = id_of(row, 0, 1)?;
                Ok((id, whole_row(id, row, 2)?))
            })?
            .collect()
    };
    query().map_err(explain)
}
