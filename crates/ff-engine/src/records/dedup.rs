//! Remembered answers: the same request within its window is not done twice.

use ff_core::TimestampMs;
use ff_core::backend::suspension::SuspendOutcome;
use ff_core::ids::{BudgetId, ExecutionId, Namespace, SignalId, WaitpointId};
use ff_core::partition::Partition;
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;

/// What a key deduplicates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum DedupScope {
    Creation { namespace: Namespace, key: String },
    Signal { waitpoint: WaitpointId, key: String },
    Suspend { execution: ExecutionId, key: String },
    Usage { budget: BudgetId, key: String },
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum DedupValue {
    Execution(ExecutionId),
    Signal { signal: SignalId, execution: ExecutionId },
    Suspend(Box<SuspendOutcome>),
    Applied,
}

/// A remembered answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Dedup {
    pub home: Partition,
    pub scope: DedupScope,
    pub value: DedupValue,
    pub expires_at: TimestampMs,
}

impl Dedup {
    /// Whether it still counts.
    #[must_use]
    pub fn is_live(&self, now: TimestampMs) -> bool {
        !self.expires_at.is_due(now)
    }
}

impl Stored for Dedup {
    fn key(&self) -> Key {
        Key::dedup(self.home, self.scope.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        // The same key may be remembered in several partitions at the same moment.
        let tie = format!("{} {:?}", self.home, self.scope).into_bytes();
        let owner = match (&self.scope, &self.value) {
            (DedupScope::Suspend { execution, .. }, _) => Some(*execution),
            (_, DedupValue::Signal { execution, .. }) => Some(*execution),
            _ => None,
        };
        if let Some(execution) = owner {
            out.push(Entry::new(Index::DedupsOf(execution), Position::by(tie.clone())));
        }
        out.push(Entry::new(Index::Due(DueKind::DedupExpiry), Position::at(self.expires_at, tie)));
    }
}
