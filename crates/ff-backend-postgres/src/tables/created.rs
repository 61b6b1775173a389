//! When executions were created: kept apart from their rows, which change while this does not.

use ff_core::ids::ExecutionId;
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
