//! Remembered answers: the same request within its window is not done twice.

use ff_core::TimestampMs;
use ff_core::backend::suspension::SuspendOutcome;
use ff_core::ids::{BudgetId, ExecutionId, Namespace, SignalId, WaitpointId};
use ff_core::partition::Partition;
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;
use crate::tie::Tie;

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

    /// The same key may be remembered in several partitions at the same moment.
    fn tie(&self) -> Tie {
        let home = Tie::default().partition(self.home);
        match &self.scope {
            DedupScope::Creation { namespace, key } => home.tag(b'c').text(namespace.as_str()).text(key),
            DedupScope::Signal { waitpoint, key } => home.tag(b's').uuid(waitpoint.uuid()).text(key),
            DedupScope::Suspend { execution, key } => home.tag(b'p').execution(*execution).text(key),
            DedupScope::Usage { budget, key } => home.tag(b'u').uuid(budget.uuid()).text(key),
        }
    }
}

impl Stored for Dedup {
    fn key(&self) -> Key {
        Key::dedup(self.home, self.scope.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let tie = self.tie();
        let owner = match (&self.scope, &self.value) {
            (DedupScope::Suspend { execution, .. }, _) => Some(*execution),
            (_, DedupValue::Signal { execution, .. }) => Some(*execution),
            _ => None,
        };
        if let Some(execution) = owner {
            out.push(Entry::new(Index::DedupsOf(execution), Position::by(&tie)));
        }
        out.push(Entry::new(Index::Due(DueKind::DedupExpiry), Position::at(self.expires_at, tie)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);

    fn tie(home: u16, scope: DedupScope) -> Vec<u8> {
        let (value, expires_at) = (DedupValue::Applied, TimestampMs(5));
        Dedup { home: Partition::flow(home), scope, value, expires_at }.tie().as_ref().to_vec()
    }

    fn creation(namespace: &str, key: &str) -> DedupScope {
        DedupScope::Creation { namespace: Namespace::new(namespace).unwrap(), key: key.to_owned() }
    }

    fn signal(waitpoint: Uuid, key: &str) -> DedupScope {
        DedupScope::Signal { waitpoint: WaitpointId::from_uuid(waitpoint), key: key.to_owned() }
    }

    fn usage(budget: Uuid, key: &str) -> DedupScope {
        DedupScope::Usage { budget: BudgetId::from_uuid(budget), key: key.to_owned() }
    }

    fn suspend(partition: u16, key: &str) -> DedupScope {
        DedupScope::Suspend { execution: ExecutionId::new(partition, ONE), key: key.to_owned() }
    }

    #[test]
    fn every_remembered_answer_has_a_place_of_its_own() {
        let ties = [
            tie(0, creation("acme", "k")),
            tie(1, creation("acme", "k")),
            tie(0, creation("acme", "k\"")),
            tie(0, creation("acm", "ek")),
            tie(0, creation("acme", "")),
            tie(0, signal(ONE, "k")),
            tie(0, signal(Uuid::from_u128(2), "k")),
            tie(0, signal(ONE, "l")),
            tie(0, usage(ONE, "k")),
            tie(0, suspend(0, "k")),
            tie(0, suspend(1, "k")),
        ];
        assert_eq!(BTreeSet::from_iter(&ties).len(), ties.len());
    }

    #[test]
    fn the_place_of_an_answer_is_written_as_stores_keep_it() {
        let uuid = b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01";
        assert_eq!(tie(7, creation("acme", "k")), b"f\0\x07cacme\0\0k\0\0");
        assert_eq!(tie(7, signal(ONE, "k")), [b"f\0\x07s", &uuid[..], b"k\0\0"].concat());
        assert_eq!(tie(7, usage(ONE, "k")), [b"f\0\x07u", &uuid[..], b"k\0\0"].concat());
        assert_eq!(tie(7, suspend(3, "k")), [b"f\0\x07p\0\x03", &uuid[..], b"k\0\0"].concat());
    }
}
