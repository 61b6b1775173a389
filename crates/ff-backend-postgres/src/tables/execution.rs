//! Executions, with the columns that their hot indexes sort by.

use std::sync::Arc;

use ff_core::Result;
use ff_core::ids::{ExecutionId, ExecutionKind, LaneId, Namespace};
use ff_engine::index::{Bounds, DueKind, Entry, Index, Position};
use ff_engine::key::Key;
use postgres_types::ToSql;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Along, Bring, Entered, cell};
use crate::address::{Cell, Satellite, Stored};
use crate::column;
use crate::error::corrupt;
use crate::indexes::{Columns, Query};
use crate::session::Step;
use crate::value::{Bytes, Text};

/// What the columns of a row hold, as its index entries say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shadow {
    pub(crate) lane: Option<Text<LaneId>>,
    pub(crate) kind: Option<Text<ExecutionKind>>,
    pub(crate) state: Option<i8>,
    pub(crate) created_at: Option<i64>,
    pub(crate) queue: Option<Uuid>,
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
                    shadow.lane = Some(Text(lane.clone()));
                    shadow.state = Some(column::letter(*state));
                }
                Index::KindState(kind, _) => shadow.kind = Some(Text(kind.clone())),
                Index::Eligible(namespace, lane, class) => {
                    shadow.queue = Some(column::queue(namespace, lane, class));
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

/// Brings the rows of executions to a list of something else.
const JOIN_ROWS: &str = "JOIN {s}.execution e ON e.partition = i.partition AND e.uuid = i.uuid";

/// What stands in an index, with as much of the rows as is wanted.
pub(crate) fn list(columns: &Columns, bounds: &Bounds, bring: Bring) -> Step {
    let has_rows = columns.table == "execution";
    let rows = if has_rows { "i" } else { "e" };
    let (wanted, join) = match bring {
        Bring::Nothing => ("i.partition, i.uuid".to_owned(), ""),
        Bring::Versions => (format!("i.partition, i.uuid, {rows}.version"), JOIN_ROWS),
        Bring::Rows => (row_columns(rows), JOIN_ROWS),
    };
    let mut query = Query::new(format!("SELECT {}, {wanted}", columns.number()));
    columns.select(&mut query, if has_rows { "" } else { join }, bounds);
    Step::new(query.sql).with_all(query.values)
}

/// One row of [`list`].
pub(crate) fn entered(row: &Row, bring: Bring) -> Result<Entered> {
    let major = cell(row, 0)?;
    let (id, along) = match bring {
        Bring::Nothing => (id_of(row, 1)?, Along::Nothing),
        Bring::Versions => (id_of(row, 1)?, Along::Version(cell(row, 3)?)),
        Bring::Rows => {
            let (id, stored) = read(row, 1)?;
            (id, Along::Row(stored.into()))
        }
    };
    Ok(Entered { position: Position::of(major, id), key: Key::execution(id), along })
}

/// How many stand in an index.
pub(crate) fn count(columns: &Columns) -> Step {
    let query = columns.count();
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

/// A row that a decision depends on.
#[derive(Debug, ToSql)]
#[postgres(name = "execution_seen")]
pub(crate) struct Seen {
    partition: i32,
    uuid: Uuid,
    version: i64,
}

impl Seen {
    pub(crate) fn new(id: ExecutionId, version: i64) -> Self {
        Self { partition: i32::from(id.partition().index()), uuid: id.uuid(), version }
    }
}

/// A row to be written.
#[derive(Debug, ToSql)]
#[postgres(name = "execution_write")]
struct Write {
    partition: i32,
    uuid: Uuid,
    old_version: i64,
    namespace: Option<Text<Namespace>>,
    lane: Option<Text<LaneId>>,
    kind: Option<Text<ExecutionKind>>,
    state: Option<i8>,
    queue: Option<Uuid>,
    rank: Option<i64>,
    created_at: Option<i64>,
    lease_expires_at: Option<i64>,
    completed_at: Option<i64>,
    sweep_from: Option<i64>,
    body: Bytes,
    definition: Cell,
    first_attempt: Cell,
    first_stream: Cell,
    claim_grant: Cell,
    payload: Cell,
    outcome: Cell,
    tags: Cell,
}

impl Write {
    fn new(id: ExecutionId, old_version: i64, namespace: Option<Namespace>, stored: &Stored) -> Self {
        let shadow = Shadow::of(stored.entries());
        let cell = |satellite: Satellite| stored.cells[satellite as usize].clone();
        Self {
            partition: i32::from(id.partition().index()),
            uuid: id.uuid(),
            old_version,
            namespace: namespace.map(Text),
            lane: shadow.lane,
            kind: shadow.kind,
            state: shadow.state,
            queue: shadow.queue,
            rank: shadow.rank,
            created_at: shadow.created_at,
            lease_expires_at: shadow.lease_expires_at,
            completed_at: shadow.completed_at,
            sweep_from: shadow.sweep_from,
            body: Bytes(Arc::clone(&stored.body)),
            definition: cell(Satellite::Definition),
            first_attempt: cell(Satellite::FirstAttempt),
            first_stream: cell(Satellite::FirstStream),
            claim_grant: cell(Satellite::ClaimGrant),
            payload: cell(Satellite::Payload),
            outcome: cell(Satellite::Outcome),
            tags: cell(Satellite::Tags),
        }
    }
}

/// Rows to be written.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    changed: Vec<Write>,
    added: Vec<Write>,
}

impl Rows {
    /// Adds a row that enters the order of creation, if its namespace is known.
    pub(crate) fn add(&mut self, id: ExecutionId, stored: &Stored, namespace: Option<Namespace>) {
        self.added.push(Write::new(id, Stored::NO_VERSION, namespace, stored));
    }

    /// Writes a row in place of what has this version.
    pub(crate) fn update(&mut self, id: ExecutionId, old_version: i64, stored: &Stored) {
        self.changed.push(Write::new(id, old_version, None, stored));
    }

    /// Gives them to a call of `commit`.
    pub(crate) fn parameters(self, step: Step) -> Step {
        step.with(self.changed).with(self.added)
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
           FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::text[], $5::\"char\"[], $6::bigint[], $7::uuid[],
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
    .with(each(shadows, |shadow| shadow.queue))
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
