//! A reservation of one execution for one worker.

use std::collections::BTreeSet;

use ff_core::TimestampMs;
use ff_core::ids::{ExecutionId, LaneId, WorkerId, WorkerInstanceId};
use uuid::Uuid;

pub use ff_core::backend::claims::GrantKind;

use super::Stored;
use super::sparse::sparse;
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;

/// The one live grant of an execution: single use, bound to a worker, gone at its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Grant {
    pub execution: ExecutionId,
    pub kind: GrantKind,
    pub id: Uuid,
    pub lane: LaneId,
    pub worker_id: WorkerId,
    pub worker_instance_id: WorkerInstanceId,
    /// What the worker could do when the grant was issued.
    pub capabilities: BTreeSet<String>,
    pub created_at: TimestampMs,
    pub expires_at: TimestampMs,
}

sparse!(Grant {
    known: [execution: ExecutionId],
    always: [kind, id, lane, worker_id, worker_instance_id, created_at, expires_at],
    or_default: [capabilities],
});

impl Grant {
    /// Whether it can still be consumed.
    #[must_use]
    pub fn is_live(&self, now: TimestampMs) -> bool {
        !self.expires_at.is_due(now)
    }

    /// The key callers see.
    #[must_use]
    pub fn grant_key(&self) -> String {
        format!("{}:{}", self.execution, self.id)
    }
}

impl Stored for Grant {
    fn key(&self) -> Key {
        Key::grant(self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(
            Index::Due(DueKind::GrantExpiry),
            Position::at(self.expires_at, self.execution.to_bytes()),
        ));
    }
}
