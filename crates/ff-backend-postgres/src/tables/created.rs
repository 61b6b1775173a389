//! When executions were created: kept apart from their rows, which change while this does not.

use ff_core::ids::ExecutionId;
use ff_core::partition::{Partition, PartitionFamily};
use ff_engine::index::{Entry, Index};
use uuid::Uuid;

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
            "DELETE FROM {s}.created c USING unnest($1::bigint[], $2::integer[], $3::uuid[]) AS w (at, partition, uuid)
             WHERE c.created_at = w.at AND c.partition = w.partition AND c.uuid = w.uuid",
        )
        .with(self.at)
        .with(self.partitions)
        .with(self.uuids);
        Some(step).filter(|_| !is_empty)
    }
}

/// Removes what no execution declares, of one partition or of all; gives a row for each.
pub(crate) fn remove_undeclared(of: Option<Partition>) -> Step {
    Step::new(
        "DELETE FROM {s}.created c WHERE ($1::integer IS NULL OR c.partition = $1) AND NOT EXISTS (
           SELECT FROM {s}.execution e WHERE e.partition = c.partition AND e.uuid = c.uuid AND e.created_at = c.created_at
         ) RETURNING 1",
    )
    .with(of.filter(|of| of.family() == PartitionFamily::Flow).map(|of| i32::from(of.index())))
}
