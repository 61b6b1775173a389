//! Budgets, what executions spent of them, and the scopes they attach to.

use ff_core::TimestampMs;
use ff_core::backend::budgets::{Amounts, BreachAction, BudgetScope};
use ff_core::ids::{BudgetId, ExecutionId, FlowId, LaneId, Namespace};
use ff_core::partition::Partition;
use ff_core::rules::budgets::{Breach, BudgetLimits, exhausted, next_reset_at};
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position};
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

impl Scope {
    /// The scope under which a policy of a namespace is found; `None` for one that is attached by id alone.
    #[must_use]
    pub fn of(namespace: &Namespace, scope: &BudgetScope) -> Option<Self> {
        let namespace = namespace.clone();
        match scope {
            BudgetScope::Policy {} => None,
            BudgetScope::Namespace {} => Some(Self::Namespace(namespace)),
            BudgetScope::Lane { lane_id } => Some(Self::Lane(namespace, lane_id.clone())),
            BudgetScope::Flow { flow_id } => Some(Self::Flow(namespace, *flow_id)),
            BudgetScope::Tag { key, value } => Some(Self::Tag { namespace, key: key.clone(), value: value.clone() }),
        }
    }
}

/// Counters of the running period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct BudgetPeriod {
    /// Counts the resets; ledgers of an earlier generation are void.
    pub generation: u64,
    pub usage: Amounts,
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
    pub scope: BudgetScope,
    /// As the creator gave it; for scope `policy` only a label.
    pub scope_id: String,
    pub on_hard_limit: BreachAction,
    pub on_soft_limit: BreachAction,
    pub hard_limits: Amounts,
    pub soft_limits: Amounts,
    pub reset_interval_ms: u64,
    pub created_at: TimestampMs,
    pub period: BudgetPeriod,
}

impl Budget {
    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> BudgetLimits {
        BudgetLimits { hard: self.hard_limits.clone(), soft: self.soft_limits.clone() }
    }

    /// What keeps attached executions from being claimed: a hard limit that is reached, or, when soft limits block, a soft limit
    /// that is exceeded.
    #[must_use]
    pub fn closed_by(&self) -> Option<Breach> {
        exhausted(&self.limits(), &self.period.usage).or_else(|| self.soft_block())
    }

    fn soft_block(&self) -> Option<Breach> {
        let blocks = self.on_soft_limit == BreachAction::Block;
        let mut exceeded = self.soft_limits.iter().filter_map(|(dimension, limit)| {
            let current_usage = self.period.usage.get(dimension).copied().unwrap_or(0);
            let above = *limit > 0 && current_usage > *limit;
            above.then(|| Breach { dimension: dimension.clone(), current_usage, limit: *limit })
        });
        if blocks { exceeded.next() } else { None }
    }

    /// Starts a new period: usage and breach marks are gone, ledgers of earlier periods are void.
    pub fn reset(&mut self, now: TimestampMs) {
        self.period = BudgetPeriod {
            generation: self.period.generation + 1,
            last_reset_at: Some(now),
            next_reset_at: next_reset_at(now, self.reset_interval_ms),
            ..BudgetPeriod::default()
        };
    }
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
    pub spent: Amounts,
}

impl Stored for Ledger {
    fn key(&self) -> Key {
        Key::ledger(self.home, self.budget, self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::LedgersOf(self.home, self.budget), Position::by(self.execution.to_bytes())));
        out.push(Entry::new(Index::SpendingOf(self.execution), Position::by(*self.budget.uuid().as_bytes())));
    }
}
