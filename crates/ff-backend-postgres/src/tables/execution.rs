//! Executions, with the columns that their hot indexes sort by.

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::codec::encode_queue;
use ff_engine::index::{Bounds, DueKind, Entry, Index, Position};
use ff_engine::key::Key;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Entered, cell};
use crate::address::{Cell, Satellite, Stored};
use crate::error::corrupt;
use crate::indexes::{Columns, Query};
use crate::session::Step;
use crate::short::short;

/// What the columns of a row hold, as its index entries say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shadow {
    pub(crate) lane: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) state: Option<&'static str>,
    pub(crate) created_at: Option<i64>,
    pub(crate) queue: Option<Vec<u8>>,
    pub(crate) rank: Option<i64>,
    pub(crate) lease_expires_at: Option<i64>,
    pub(crate) completed_at: Option<i64>,
    pub(crate) sweep_from: Option<i64>,
}

impl Shadow {
    /// The columns for these entries.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut shadow = Self::default();
        for Entry { index, position } in entries {
            match index {
                Index::Created => shadow.created_at = Some(-position.major),
                Index::LaneState(lane, state) => {
                    shadow.lane = Some(lane.to_string());
                    shadow.state = Some(state.as_str());
                }
                Index::KindState(kind, _) => shadow.kind = Some(kind.to_string()),
                Index::Eligible(namespace, lane, class) => {
                    shadow.queue = Some(short(encode_queue(namespace, lane, class)));
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
}

/// The columns of a row that [`read`] takes, of a table that is called so.
fn row_columns(table: &str) -> String {
    let cells = Satellite::ALL.map(|satellite| format!("{table}.{}", satellite.column())).join(", ");
    format!("{table}.partition, {table}.uuid, {table}.version, {table}.body, {cells}")
}

/// The id in two columns from one on.
pub(crate) fn id_of(row: &Row, from: usize) -> Result<ExecutionId> {
    let (partition, uuid): (i32, Uuid) = (cell(row, from)?, cell(row, from + 1)?);
    let partition = u16::try_from(partition).map_err(|_| corrupt("a partition has no such number"))?;
    Ok(ExecutionId::new(partition, uuid))
}

/// A row, with its columns from one on.
pub(crate) fn read(row: &Row, from: usize) -> Result<(ExecutionId, Stored)> {
    let id = id_of(row, from)?;
    let mut stored = Stored::read(&Key::execution(id), cell(row, from + 2)?, cell(row, from + 3)?);
    for (at, held) in stored.cells.iter_mut().enumerate() {
        *held = Cell::read(cell(row, from + 4 + at)?);
    }
    Ok((id, stored))
}

/// Ids as two arrays.
pub(crate) fn columns_of(ids: impl IntoIterator<Item = ExecutionId>) -> (Vec<i32>, Vec<Uuid>) {
    ids.into_iter().map(|id| (i32::from(id.partition().index()), id.uuid())).unzip()
}

/// Rows by id.
pub(crate) fn load(ids: &[ExecutionId]) -> Step {
    let (partitions, uuids) = columns_of(ids.iter().copied());
    let columns = row_columns("e");
    Step::new(format!(
        "SELECT {columns} FROM unnest($1::integer[], $2::uuid[]) AS w (partition, uuid)
         JOIN {{s}}.execution e ON e.partition = w.partition AND e.uuid = w.uuid"
    ))
    .with(partitions)
    .with(uuids)
}

/// What stands in an index, with the rows if they are wanted.
pub(crate) fn list(columns: &Columns, bounds: &Bounds, with_rows: bool) -> Step {
    let (number, table) = (columns.number(), columns.table);
    let mut query = Query::new(match (with_rows, table) {
        (false, _) => format!("SELECT {number}, i.partition, i.uuid FROM {{s}}.{table} i"),
        (true, "execution") => format!("SELECT {number}, {} FROM {{s}}.execution i", row_columns("i")),
        (true, _) => format!(
            "SELECT {number}, {} FROM {{s}}.{table} i
             JOIN {{s}}.execution e ON e.partition = i.partition AND e.uuid = i.uuid",
            row_columns("e")
        ),
    });
    columns.select(&mut query, bounds);
    Step::new(query.sql).with_all(query.values)
}

/// One row of [`list`].
pub(crate) fn entered(row: &Row, with_rows: bool) -> Result<Entered> {
    let major = cell(row, 0)?;
    let (id, stored) = if with_rows {
        let (id, stored) = read(row, 1)?;
        (id, Some(stored.into()))
    } else {
        (id_of(row, 1)?, None)
    };
    Ok(Entered { position: Position::of(major, id), key: Key::execution(id), row: stored })
}

/// How many stand in an index.
pub(crate) fn count(columns: &Columns) -> Step {
    let mut query = Query::new(format!("SELECT count(*) FROM {{s}}.{} i", columns.table));
    columns.filter(&mut query);
    Step::new(query.sql).with_all(query.values)
}

/// One page of all ids after one, in their order.
pub(crate) fn page(after: Option<ExecutionId>, limit: i64) -> Step {
    let (partition, uuid) = after.map_or((-1, Uuid::nil()), |id| (i32::from(id.partition().index()), id.uuid()));
    let columns = row_columns("e");
    Step::new(format!(
        "SELECT {columns} FROM {{s}}.execution e WHERE (e.partition, e.uuid) > ($1, $2)
         ORDER BY e.partition, e.uuid LIMIT $3"
    ))
    .with(partition)
    .with(uuid)
    .with(limit)
}

/// The parameters of [`Rows`] as a table.
macro_rules! rows {
    () => {
        "unnest($1::integer[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bytea[],
           $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bytea[], $14::bytea[], $15::bytea[],
           $16::bytea[], $17::bytea[])
         AS w (partition, uuid, version, lane, kind, state, created_at, queue, rank, lease_expires_at, completed_at,
           sweep_from, body, definition, first_attempt, first_stream, claim_grant)"
    };
}

/// Rows to be written, by column.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    partitions: Vec<i32>,
    uuids: Vec<Uuid>,
    versions: Vec<i64>,
    lanes: Vec<Option<String>>,
    kinds: Vec<Option<String>>,
    states: Vec<Option<&'static str>>,
    created_at: Vec<Option<i64>>,
    queues: Vec<Option<Vec<u8>>>,
    ranks: Vec<Option<i64>>,
    leases: Vec<Option<i64>>,
    completed_at: Vec<Option<i64>>,
    sweep_from: Vec<Option<i64>>,
    bodies: Vec<Vec<u8>>,
    cells: [Vec<Option<Vec<u8>>>; Satellite::ALL.len()],
}

impl Rows {
    pub(crate) fn push(&mut self, id: ExecutionId, stored: &Stored, shadow: Shadow) {
        self.partitions.push(i32::from(id.partition().index()));
        self.uuids.push(id.uuid());
        self.versions.push(stored.version);
        self.lanes.push(shadow.lane);
        self.kinds.push(shadow.kind);
        self.states.push(shadow.state);
        self.created_at.push(shadow.created_at);
        self.queues.push(shadow.queue);
        self.ranks.push(shadow.rank);
        self.leases.push(shadow.lease_expires_at);
        self.completed_at.push(shadow.completed_at);
        self.sweep_from.push(shadow.sweep_from);
        self.bodies.push(stored.body.to_vec());
        for (column, held) in self.cells.iter_mut().zip(&stored.cells) {
            column.push(held.column().map(<[u8]>::to_vec));
        }
    }

    fn parameters(self, sql: &str) -> Option<Step> {
        if self.uuids.is_empty() {
            return None;
        }
        let step = Step::new(sql)
            .with(self.partitions)
            .with(self.uuids)
            .with(self.versions)
            .with(self.lanes)
            .with(self.kinds)
            .with(self.states)
            .with(self.created_at)
            .with(self.queues)
            .with(self.ranks)
            .with(self.leases)
            .with(self.completed_at)
            .with(self.sweep_from)
            .with(self.bodies);
        Some(self.cells.into_iter().fold(step, Step::with))
    }

    /// Adds the rows.
    pub(crate) fn insert(self) -> Option<Step> {
        self.parameters(concat!(
            "INSERT INTO {s}.execution (partition, uuid, version, lane, kind, state, created_at, queue, rank,
               lease_expires_at, completed_at, sweep_from, body, definition, first_attempt, first_stream, claim_grant)
             SELECT * FROM ",
            rows!()
        ))
    }

    /// Writes the rows in place of what they held.
    pub(crate) fn update(self) -> Option<Step> {
        self.parameters(concat!(
            "UPDATE {s}.execution e SET version = w.version, lane = w.lane, kind = w.kind, state = w.state,
               created_at = w.created_at, queue = w.queue, rank = w.rank, lease_expires_at = w.lease_expires_at,
               completed_at = w.completed_at, sweep_from = w.sweep_from, body = w.body, definition = w.definition,
               first_attempt = w.first_attempt, first_stream = w.first_stream, claim_grant = w.claim_grant
             FROM ",
            rows!(),
            " WHERE e.partition = w.partition AND e.uuid = w.uuid"
        ))
    }
}

/// Removes rows.
pub(crate) fn delete(ids: &[ExecutionId]) -> Option<Step> {
    by_id(
        "DELETE FROM {s}.execution e USING unnest($1::integer[], $2::uuid[]) AS w (partition, uuid)
         WHERE e.partition = w.partition AND e.uuid = w.uuid",
        ids,
    )
}

/// Gives rows another version.
pub(crate) fn touch(ids: &[ExecutionId], version: i64) -> Option<Step> {
    by_id(
        "UPDATE {s}.execution e SET version = $3 FROM unnest($1::integer[], $2::uuid[]) AS w (partition, uuid)
         WHERE e.partition = w.partition AND e.uuid = w.uuid",
        ids,
    )
    .map(|step| step.with(version))
}

fn by_id(sql: &str, ids: &[ExecutionId]) -> Option<Step> {
    let (partitions, uuids) = columns_of(ids.iter().copied());
    (!ids.is_empty()).then(|| Step::new(sql).with(partitions).with(uuids))
}

/// Writes the columns of executions' indexes where they are wrong; gives a row for each execution, with how many were.
pub(crate) fn restore(shadows: &[(ExecutionId, Shadow)]) -> Option<Step> {
    const COLUMNS: [&str; 9] =
        ["lane", "kind", "state", "created_at", "queue", "rank", "lease_expires_at", "completed_at", "sweep_from"];
    let set = COLUMNS.map(|column| format!("{column} = w.{column}")).join(", ");
    let wrong = COLUMNS.map(|column| format!("(i.{column} IS DISTINCT FROM w.{column})::integer")).join(" + ");
    let names = COLUMNS.join(", ");
    let (partitions, uuids) = columns_of(shadows.iter().map(|(id, _)| *id));
    let step = Step::new(format!(
        "UPDATE {{s}}.execution e SET {set}
         FROM (
           SELECT w.*, {wrong} AS wrong
           FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bytea[],
             $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[]) AS w (partition, uuid, {names})
           JOIN {{s}}.execution i ON i.partition = w.partition AND i.uuid = w.uuid
         ) AS w
         WHERE e.partition = w.partition AND e.uuid = w.uuid AND w.wrong > 0
         RETURNING w.wrong"
    ))
    .with(partitions)
    .with(uuids)
    .with(each(shadows, |shadow| shadow.lane.clone()))
    .with(each(shadows, |shadow| shadow.kind.clone()))
    .with(each(shadows, |shadow| shadow.state))
    .with(each(shadows, |shadow| shadow.created_at))
    .with(each(shadows, |shadow| shadow.queue.clone()))
    .with(each(shadows, |shadow| shadow.rank))
    .with(each(shadows, |shadow| shadow.lease_expires_at))
    .with(each(shadows, |shadow| shadow.completed_at))
    .with(each(shadows, |shadow| shadow.sweep_from));
    Some(step).filter(|_| !shadows.is_empty())
}

/// One column of all of them.
fn each<T>(shadows: &[(ExecutionId, Shadow)], column: impl Fn(&Shadow) -> T) -> Vec<T> {
    shadows.iter().map(|(_, shadow)| column(shadow)).collect()
}
