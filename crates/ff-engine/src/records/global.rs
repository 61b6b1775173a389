//! Rare records that every process shares.

use std::collections::BTreeSet;

use ff_core::TimestampMs;
use ff_core::ids::{BudgetId, LaneId, Namespace, QuotaPolicyId};
use ff_core::partition::PartitionCounts;
use ff_core::state::LaneState;
use ff_core::token::Keyring;
use serde::{Deserialize, Serialize};

use super::{Scope, Stored};
use crate::index::{Entry, Index, Position, Topic, pair_bytes};
use crate::key::Key;

/// A lane that was used or registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Lane {
    pub namespace: Namespace,
    pub lane: LaneId,
    pub state: LaneState,
    pub since: TimestampMs,
    pub reason: String,
}

impl Stored for Lane {
    fn key(&self) -> Key {
        Key::lane(self.namespace.clone(), self.lane.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let tie = pair_bytes(self.namespace.as_str(), self.lane.as_str());
        out.push(Entry::new(Index::Lanes, Position::by(tie)));
    }

    fn topics(&self, out: &mut Vec<Topic>) {
        out.push(Topic::Lane(self.lane.clone()));
    }
}

/// Budgets and quotas attached to a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ScopeBinding {
    pub scope: Scope,
    pub budgets: BTreeSet<BudgetId>,
    pub quotas: BTreeSet<QuotaPolicyId>,
}

impl Stored for ScopeBinding {
    fn key(&self) -> Key {
        Key::scope_binding(self.scope.clone())
    }
}

/// Secrets: signing keys of waitpoints, the sealing key of handles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct KeyringRecord {
    pub ring: Keyring,
}

impl Stored for KeyringRecord {
    fn key(&self) -> Key {
        Key::keyring()
    }
}

/// Settings fixed at first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Deployment {
    pub counts: PartitionCounts,
    pub created_at: TimestampMs,
}

impl Stored for Deployment {
    fn key(&self) -> Key {
        Key::deployment()
    }
}
