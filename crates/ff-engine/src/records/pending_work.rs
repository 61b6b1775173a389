//! Work that outlives the commit that caused it.

use std::collections::BTreeSet;

use ff_core::TimestampMs;
use ff_core::backend::budgets::BreachAction;
use ff_core::ids::{BudgetId, ExecutionId, FlowId, LaneId, LeaseEpoch, Namespace, QuotaPolicyId};
use ff_core::partition::Partition;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;
use crate::tie::Tie;

/// The end of one ownership, owed to quotas in other partitions. Applying it twice changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Settlement {
    pub execution: ExecutionId,
    pub epoch: LeaseEpoch,
    pub quotas: Vec<QuotaPolicyId>,
    pub due_at: TimestampMs,
}

impl Stored for Settlement {
    fn key(&self) -> Key {
        Key::settlement(self.execution, self.epoch)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let mut tie = self.execution.to_bytes().to_vec();
        tie.extend_from_slice(&self.epoch.0.to_be_bytes());
        out.push(Entry::new(Index::Due(DueKind::Settlement), Position::at(self.due_at, tie)));
    }
}

/// What bulk work is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ContinuationWork {
    /// Cancel the members a cancelled flow owes.
    CancelMembers { flow: FlowId },
    /// Settle the outgoing edges of a terminal execution.
    ResolveEdges { flow: FlowId, upstream: ExecutionId },
    /// Act on every live execution attached to a breached budget.
    Breach { budget: BudgetId, action: BreachAction },
    /// A budget opened: release what it parked.
    OpenBudget { budget: BudgetId },
    /// A quota has free slots: release at most so many.
    OpenQuota { quota: QuotaPolicyId },
    /// A worker came: release what was parked for want of it.
    OpenRoute {
        namespace: Namespace,
        lane: LaneId,
        capabilities: BTreeSet<String>,
        #[serde(default)]
        kinds: Option<BTreeSet<String>>,
    },
}

/// Unfinished bulk work; any process goes on with it, a slice at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Continuation {
    pub home: Partition,
    pub id: Uuid,
    pub work: ContinuationWork,
    /// Where the last slice stopped.
    pub after: Option<Position>,
    pub due_at: TimestampMs,
}

impl Stored for Continuation {
    fn key(&self) -> Key {
        Key::continuation(self.home, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        // Ids follow from those of flows and executions, which callers choose: the same one may be due in several partitions.
        let tie = Tie::default().partition(self.home).uuid(self.id);
        out.push(Entry::new(Index::Due(DueKind::Continuation), Position::at(self.due_at, tie)));
    }
}
