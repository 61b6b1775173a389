//! Budgets, what executions spent of them, and the scopes they attach to.

use std::collections::BTreeMap;

use ff_core::TimestampMs;
use ff_core::backend::budgets::BreachAction;
use ff_core::ids::{BudgetId, ExecutionId, FlowId, LaneId, Namespace};
use ff_core::partition::Partition;
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position, execution_bytes};
use crate::key::Key;

/// What a budget or a quota is attached to; resolved when an execution is created.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Scope {
    Namespace(Namespace),
    Lane(Namespace, LaneId),
    Flow(Namespace, FlowId),
    Tag { namespace: Namespace, key: String, value: String },
}

/// Counters of the running period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct BudgetPeriod {
    /// Counts the resets; ledgers of an earlier generation are void.
    pub generation: u64,
    pub usage: BTreeMap<String, u64>,
    pub breach_count: u64,
    pub soft_breach_count: u64,
    pub last_breach: Option<(TimestampMs, String)>,
    pub last_reset_at: Option<TimestampMs>,
    pub next_reset_at: Option<TimestampMs>,
}

/// A budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Budget {
    pub home: Partition,
    pub id: BudgetId,
    pub namespace: Namespace,
    pub scope_type: String,
    pub scope_id: String,
    pub on_hard_limit: BreachAction,
    pub on_soft_limit: BreachAction,
    pub hard_limits: BTreeMap<String, u64>,
    pub soft_limits: BTreeMap<String, u64>,
    pub reset_interval_ms: u64,
    pub created_at: TimestampMs,
    pub period: BudgetPeriod,
}

impl Stored for Budget {
    fn key(&self) -> Key {
        Key::budget(self.home, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let by_id = *self.id.uuid().as_bytes();
        out.push(Entry::new(Index::BudgetsIn(self.home), Position::by(by_id)));
        if let Some(at) = self.period.next_reset_at {
            out.push(Entry::new(Index::Due(DueKind::BudgetReset), Position::at(at, by_id)));
        }
    }
}

/// What one execution spent of a budget in one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Ledger {
    pub home: Partition,
    pub budget: BudgetId,
    pub execution: ExecutionId,
    pub generation: u64,
    pub spent: BTreeMap<String, u64>,
}

impl Stored for Ledger {
    fn key(&self) -> Key {
        Key::ledger(self.home, self.budget, self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::LedgersOf(self.home, self.budget), Position::by(execution_bytes(self.execution))));
        out.push(Entry::new(Index::SpendingOf(self.execution), Position::by(*self.budget.uuid().as_bytes())));
    }
}
