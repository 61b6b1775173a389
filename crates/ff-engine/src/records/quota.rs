//! Quotas: definitions, counters, rate windows and the executions they admitted.

use std::collections::BTreeMap;

use ff_core::TimestampMs;
use ff_core::ids::{ExecutionId, LeaseEpoch, Namespace, QuotaPolicyId};
use ff_core::partition::Partition;
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::index::{DueKind, Entry, Index, Position, execution_bytes};
use crate::key::Key;

/// A quota's definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct QuotaPolicy {
    pub home: Partition,
    pub id: QuotaPolicyId,
    pub namespace: Namespace,
    pub window_seconds: u64,
    pub max_requests_per_window: u64,
    pub max_concurrent: u64,
    pub jitter_ms: u64,
    pub created_at: TimestampMs,
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
    /// Whether it occupies a concurrency slot.
    pub holds_slot: bool,
    /// Until then the claim it is for may not have happened; afterwards it is confirmed or dropped.
    pub provisional_until: Option<TimestampMs>,
}

impl Stored for Admission {
    fn key(&self) -> Key {
        Key::admission(self.home, self.quota, self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::AdmissionsOf(self.home, self.quota), Position::by(execution_bytes(self.execution))));
        if let Some(at) = self.provisional_until {
            let mut tie = execution_bytes(self.execution);
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
