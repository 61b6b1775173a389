//! Executions, with the columns that their hot indexes sort by.

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::codec::{decode_record, encode_queue};
use ff_engine::index::{Bounds, DueKind, Entry, Index, Position};
use ff_engine::key::Key;
use ff_engine::records::Record;
use rusqlite::types::{ToSql, Value};
use rusqlite::{Connection, OptionalExtension as _, Row, params, params_from_iter};

use super::{Found, number};
use crate::error::{corrupt, explain};
use crate::indexes::{Columns, position_of};

/// What the columns of a row hold, as its index entries say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shadow {
    namespace: Option<String>,
    lane: Option<String>,
    kind: Option<String>,
    state: Option<&'static str>,
    created_at: Option<i64>,
    queue: Option<Vec<u8>>,
    rank: Option<i64>,
    holder: Option<String>,
    lease_expires_at: Option<i64>,
    completed_at: Option<i64>,
    sweep_from: Option<i64>,
}

/// The columns of a shadow, in the order of [`Shadow::values`].
const COLUMNS: [&str; 11] = [
    "namespace",
    "lane",
    "kind",
    "state",
    "created_at",
    "queue",
    "rank",
    "holder",
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
                Index::CreatedIn(namespace) => shadow.namespace = Some(namespace.to_string()),
                Index::Created => shadow.created_at = Some(-position.major),
                Index::LaneState(lane, state) => {
                    shadow.lane = Some(lane.to_string());
                    shadow.state = Some(state.as_str());
                }
                Index::KindState(kind, _) => shadow.kind = Some(kind.clone()),
                Index::Eligible(namespace, lane, class) => {
                    shadow.queue = Some(encode_queue(namespace, lane, class));
                    shadow.rank = Some(position.major);
                }
                Index::LeasesOf(instance) => shadow.holder = Some(instance.to_string()),
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
            &self.holder,
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
            self.holder == other.holder,
            self.lease_expires_at == other.lease_expires_at,
            self.completed_at == other.completed_at,
            self.sweep_from == other.sweep_from,
        ];
        same.iter().enumerate().filter(|(_, same)| !**same).fold(0, |mask, (bit, _)| mask | 1 << bit)
    }
}

fn address(id: ExecutionId) -> (i64, [u8; 16]) {
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

/// The execution with this id.
pub(crate) fn load(db: &Connection, id: ExecutionId) -> Result<Option<Found>> {
    let (partition, uuid) = address(id);
    let mut statement =
        db.prepare_cached("SELECT id, body FROM execution WHERE partition = ? AND uuid = ?").map_err(explain)?;
    let mut rows = statement.query(params![partition, uuid]).map_err(explain)?;
    let Some(row) = rows.next().map_err(explain)? else { return Ok(None) };
    let body = row.get_ref(1).map_err(explain)?;
    let bytes = body.as_blob().map_err(|_| corrupt("an execution has no bytes"))?;
    let record = decode_record(&Key::execution(id), bytes)?;
    Ok(Some(Found { row: Some(row.get(0).map_err(explain)?), record }))
}

/// Adds an execution.
pub(crate) fn insert(db: &Connection, id: ExecutionId, shadow: &Shadow, body: &[u8]) -> rusqlite::Result<()> {
    let (partition, uuid) = address(id);
    let mut statement = db.prepare_cached(
        "INSERT INTO execution (partition, uuid, body, namespace, lane, kind, state, created_at, queue, rank, holder,
                                lease_expires_at, completed_at, sweep_from)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    let fixed: [&dyn ToSql; 3] = [&partition, &uuid, &body];
    statement.execute(params_from_iter(fixed.into_iter().chain(shadow.values()))).map(drop)
}

/// Rewrites an execution. Columns that stay as they are are not named, so that their indexes are left alone.
pub(crate) fn update(db: &Connection, row: i64, old: &Shadow, new: &Shadow, body: &[u8]) -> rusqlite::Result<()> {
    let changed = old.difference(new);
    let is_changed = |bit: &usize| changed & (1 << bit) != 0;
    let mut sql = String::with_capacity(160);
    sql.push_str("UPDATE execution SET body = ?");
    for bit in (0..COLUMNS.len()).filter(is_changed) {
        sql.push_str(", ");
        sql.push_str(COLUMNS[bit]);
        sql.push_str(" = ?");
    }
    sql.push_str(" WHERE id = ?");
    let values = new.values();
    let named = (0..COLUMNS.len()).filter(is_changed).map(|bit| values[bit]);
    let first: [&dyn ToSql; 1] = [&body];
    let last: [&dyn ToSql; 1] = [&row];
    db.prepare_cached(&sql)?.execute(params_from_iter(first.into_iter().chain(named).chain(last))).map(drop)
}

/// Removes an execution.
pub(crate) fn delete(db: &Connection, id: ExecutionId) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM execution WHERE partition = ? AND uuid = ?")?.execute(address(id)).map(drop)
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
    use rusqlite::types::{ToSqlOutput, ValueRef};
    let wanted = match wanted.to_sql() {
        Ok(ToSqlOutput::Borrowed(value)) => Value::try_from(value).ok(),
        Ok(ToSqlOutput::Owned(value)) => Some(value),
        _ => None,
    };
    wanted.as_ref().is_some_and(|wanted| ValueRef::from(stored) == ValueRef::from(wanted))
}

/// Writes all columns anew.
pub(crate) fn restore(db: &Connection, row: i64, shadow: &Shadow) -> rusqlite::Result<()> {
    let sql = format!("UPDATE execution SET {} WHERE id = ?", COLUMNS.map(|column| format!("{column} = ?")).join(", "));
    let last: [&dyn ToSql; 1] = [&row];
    db.prepare_cached(&sql)?.execute(params_from_iter(shadow.values().into_iter().chain(last))).map(drop)
}

/// One page of all executions after a row: row, id, stored bytes.
pub(crate) fn page(db: &Connection, after: i64, limit: i64) -> Result<Vec<(i64, ExecutionId, Vec<u8>)>> {
    let query = || -> rusqlite::Result<Vec<_>> {
        db.prepare_cached("SELECT id, partition, uuid, body FROM execution WHERE id > ? ORDER BY id LIMIT ?")?
            .query_map(params![after, limit], |row| Ok((row.get(0)?, id_of(row, 1, 2)?, row.get(3)?)))?
            .collect()
    };
    query().map_err(explain)
}
