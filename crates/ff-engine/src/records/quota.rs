//! Quotas: definitions, counters, rate windows and the executions they admitted.

use std::collections::BTreeMap;

use ff_core::TimestampMs;
use ff_core::backend::budgets::BudgetScope;
use ff_core::backend::quotas::QuotaPolicyLimits;
use ff_core::ids::{ExecutionId, LeaseEpoch, Namespace, QuotaPolicyId};
use ff_core::partition::Partition;
use ff_core::rules::quotas::AdmissionLimits;
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;

/// A quota's definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct QuotaPolicy {
    pub home: Partition,
    pub id: QuotaPolicyId,
    pub namespace: Namespace,
    pub scope: BudgetScope,
    pub window_seconds: u64,
    pub max_requests_per_window: u64,
    pub max_concurrent: u64,
    pub jitter_ms: u64,
    pub created_at: TimestampMs,
}

impl QuotaPolicy {
    /// Its numbers.
    #[must_use]
    pub const fn limits(&self) -> QuotaPolicyLimits {
        QuotaPolicyLimits {
            max_requests_per_window: self.max_requests_per_window,
            requests_per_window_seconds: self.window_seconds,
            active_concurrency_cap: self.max_concurrent,
            jitter_ms: self.jitter_ms,
        }
    }

    /// What it asks of a claim; `None` when it bounds nothing. Without a rate no window is kept.
    #[must_use]
    pub fn bounds(&self) -> Option<AdmissionLimits> {
        let bounds = AdmissionLimits::from_definition(&self.limits())?;
        Some(if bounds.rate_limit == 0 { AdmissionLimits { window_ms: 0, ..bounds } } else { bounds })
    }
}

impl Stored for QuotaPolicy {
    fn key(&self) -> Key {
        Key::quota_policy(self.home, self.id)
    }
}

/// A quota's counters: one per concurrency, one per rate window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct QuotaUsage {
    pub home: Partition,
    pub id: QuotaPolicyId,
    pub holders: u64,
    /// Entries kept per dimension, expired ones included until they are dropped.
    pub windows: BTreeMap<String, u64>,
}

impl QuotaUsage {
    /// Nobody was admitted yet.
    #[must_use]
    pub const fn none(home: Partition, id: QuotaPolicyId) -> Self {
        Self { home, id, holders: 0, windows: BTreeMap::new() }
    }

    /// Entries kept for a dimension.
    #[must_use]
    pub fn entries_of(&self, dimension: &str) -> u64 {
        self.windows.get(dimension).copied().unwrap_or(0)
    }

    /// One more entry of a dimension.
    pub fn enter(&mut self, dimension: &str) {
        *self.windows.entry(dimension.to_owned()).or_default() += 1;
    }

    /// So many entries of a dimension are gone.
    pub fn forget(&mut self, dimension: &str, entries: u64) {
        match self.entries_of(dimension).saturating_sub(entries) {
            0 => drop(self.windows.remove(dimension)),
            left => drop(self.windows.insert(dimension.to_owned(), left)),
        }
    }
}

impl Stored for QuotaUsage {
    fn key(&self) -> Key {
        Key::quota_usage(self.home, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::QuotasIn(self.home), Position::by(*self.id.uuid().as_bytes())));
    }
}

/// One execution admitted by a quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Admission {
    pub home: Partition,
    pub quota: QuotaPolicyId,
    pub execution: ExecutionId,
    pub dimension: String,
    pub admitted_at: TimestampMs,
    /// The ownership it is for; a settlement of that epoch frees it.
    pub epoch: LeaseEpoch,
    /// The lost ownership whose slot a reclaim wants to go on with; a reclaim that fails gives it back.
    pub renewed_from: Option<LeaseEpoch>,
    /// Claims that rely on it. One that fails takes itself off; the last one takes the admission along.
    pub claims: u32,
    /// Whether it occupies a concurrency slot.
    pub holds_slot: bool,
    /// Until then the claim it is for may not have happened; afterwards it is confirmed or dropped.
    pub provisional_until: Option<TimestampMs>,
}

impl Admission {
    /// Whether it still stands for one who asks with these limits: by its slot, while its claim may come, or, where only a rate
    /// is asked, while it counts in the window.
    #[must_use]
    pub fn is_live(&self, limits: &AdmissionLimits, now: TimestampMs) -> bool {
        let in_window = limits.concurrency_cap == 0 && !self.admitted_at.plus(limits.window_ms).is_due(now);
        self.holds_slot || in_window || self.provisional_until.is_some_and(|until| !until.is_due(now))
    }

    /// Its place in the rate window.
    #[must_use]
    pub fn window_key(&self) -> Key {
        Key::window_entry(self.home, self.quota, self.dimension.clone(), self.admitted_at, self.execution)
    }
}

impl Stored for Admission {
    fn key(&self) -> Key {
        Key::admission(self.home, self.quota, self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::AdmissionsOf(self.home, self.quota), Position::by(self.execution.to_bytes())));
        if let Some(at) = self.provisional_until {
            let mut tie = self.execution.to_bytes().to_vec();
            tie.extend_from_slice(self.quota.uuid().as_bytes());
            out.push(Entry::new(Index::Due(DueKind::AdmissionExpiry), Position::at(at, tie)));
        }
    }
}

/// One admission inside a rate window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct WindowEntry {
    pub home: Partition,
    pub quota: QuotaPolicyId,
    pub dimension: String,
    pub at: TimestampMs,
    pub execution: ExecutionId,
}

impl Stored for WindowEntry {
    fn key(&self) -> Key {
        Key::window_entry(self.home, self.quota, self.dimension.clone(), self.at, self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(
            Index::WindowOf(self.home, self.quota, self.dimension.clone()),
            Position::of(self.at.0, self.execution),
        ));
    }
}
