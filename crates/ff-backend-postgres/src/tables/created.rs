//! When executions were created: kept apart from their rows, which change while this does not.

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_engine::index::{Entry, Index};
use tokio_postgres::Row;
use uuid::Uuid;

use super::cell;
use super::execution::id_of;
use crate::session::Step;

/// When an execution was created, and in which namespace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Creation {
    pub(crate) namespace: String,
    pub(crate) at: i64,
}

impl Creation {
    /// As its index entries say.
    pub(crate) fn of(entries: &[Entry]) -> Option<Self> {
        entries.iter().find_map(|entry| match &entry.index {
            Index::CreatedIn(namespace) => Some(Self { namespace: namespace.to_string(), at: -entry.position.major }),
            _ => None,
        })
    }
}

/// Rows to be added or removed, by column.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    at: Vec<i64>,
    partitions: Vec<i32>,
    uuids: Vec<Uuid>,
    namespaces: Vec<String>,
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.at.len()
    }

    pub(crate) fn push(&mut self, id: ExecutionId, creation: Creation) {
        self.at.push(creation.at);
        self.partitions.push(i32::from(id.partition().index()));
        self.uuids.push(id.uuid());
        self.namespaces.push(creation.namespace);
    }

    pub(crate) fn insert(self) -> Option<Step> {
        let is_empty = self.at.is_empty();
        let step = Step::new(
            "INSERT INTO {s}.created (created_at, partition, uuid, namespace)
             SELECT * FROM unnest($1::bigint[], $2::integer[], $3::uuid[], $4::text[]) ON CONFLICT DO NOTHING",
        )
        .with(self.at)
        .with(self.partitions)
        .with(self.uuids)
        .with(self.namespaces);
        Some(step).filter(|_| !is_empty)
    }

    /// Adds the rows that are missing; gives a row for each.
    pub(crate) fn restore(self) -> Option<Step> {
        self.insert().map(|step| step.and("RETURNING 1"))
    }

    pub(crate) fn delete(self) -> Option<Step> {
        let is_empty = self.at.is_empty();
        let step = Step::new(
            "DELETE FROM {s}.created c
             USING unnest($1::bigint[], $2::integer[], $3::uuid[], $4::text[]) AS w (at, partition, uuid, namespace)
             WHERE c.namespace = w.namespace AND c.created_at = w.at AND c.partition = w.partition AND c.uuid = w.uuid",
        )
        .with(self.at)
        .with(self.partitions)
        .with(self.uuids)
        .with(self.namespaces);
        Some(step).filter(|_| !is_empty)
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Created {
    pub(crate) id: ExecutionId,
    pub(crate) creation: Creation,
    /// Whether the row of its execution says something else, or is not there.
    pub(crate) is_doubtful: bool,
}

/// One page of all rows after one, in the order of their index.
pub(crate) fn page(after: Option<&Created>, limit: i64) -> Step {
    // No namespace is empty.
    let (namespace, at, partition, uuid) = after.map_or((String::new(), i64::MIN, i32::MAX, Uuid::max()), |row| {
        let Creation { namespace, at } = row.creation.clone();
        (namespace, at, i32::from(row.id.partition().index()), row.id.uuid())
    });
    Step::new(
        "SELECT c.partition, c.uuid, c.created_at, c.namespace, e.created_at IS DISTINCT FROM c.created_at
         FROM (
           SELECT * FROM {s}.created i
           WHERE (i.namespace, i.created_at) >= ($1, $2)
             AND ((i.namespace, i.created_at) > ($1, $2) OR (i.partition, i.uuid) < ($3, $4))
           ORDER BY i.namespace, i.created_at, i.partition DESC, i.uuid DESC LIMIT $5
         ) AS c
         LEFT JOIN {s}.execution e ON e.partition = c.partition AND e.uuid = c.uuid
         ORDER BY c.namespace, c.created_at, c.partition DESC, c.uuid DESC",
    )
    .with(namespace)
    .with(at)
    .with(partition)
    .with(uuid)
    .with(limit)
}

impl Created {
    /// One row of [`page`].
    pub(crate) fn read(row: &Row) -> Result<Self> {
        let creation = Creation { at: cell(row, 2)?, namespace: cell(row, 3)? };
        Ok(Self { id: id_of(row, 0)?, creation, is_doubtful: cell(row, 4)? })
    }
}
