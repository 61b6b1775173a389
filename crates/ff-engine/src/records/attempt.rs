//! One attempt at an execution, and what it used.

use std::collections::BTreeMap;

use ff_core::ids::{AttemptId, AttemptIndex, ExecutionId, LeaseEpoch, LeaseId, WorkerId, WorkerInstanceId};
use ff_core::state::{AttemptLifecycle, AttemptType};
use ff_core::{Blob, TimestampMs};
use serde::{Deserialize, Serialize};

use super::Stored;
use super::sparse::sparse;
use crate::index::{Entry, Index, Position, Topic};
use crate::key::Key;

/// Where an attempt comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Lineage {
    pub reason: String,
    pub requested_by: Option<String>,
    pub previous: Option<AttemptIndex>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptEnd {
    /// The final state.
    pub lifecycle: AttemptLifecycle,
    /// Why, where there is a why.
    pub reason: Option<String>,
    /// The failure's category.
    pub category: Option<String>,
    /// Whether somebody else than its owner ended it.
    pub taken: bool,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attempt {
    pub execution: ExecutionId,
    pub index: AttemptIndex,
    pub id: AttemptId,
    pub attempt_type: AttemptType,
    pub lifecycle: AttemptLifecycle,
    pub lease_id: LeaseId,
    pub lease_epoch: LeaseEpoch,
    pub worker_id: WorkerId,
    pub worker_instance_id: WorkerInstanceId,
    pub created_at: TimestampMs,
    pub started_at: TimestampMs,
    pub suspended_at: Option<TimestampMs>,
    pub resumed_at: Option<TimestampMs>,
    pub ended_at: Option<TimestampMs>,
    pub reason: Option<String>,
    pub category: Option<String>,
    /// What a failure carried for programs, byte for byte.
    pub detail: Option<Blob>,
    pub lineage: Option<Lineage>,
    /// Somebody else ended or parked it while its owner held it, and the owner may not know.
    pub taken: bool,
}

sparse!(Attempt {
    known: [execution: ExecutionId, index: AttemptIndex],
    always: [
        id,
        attempt_type,
        lifecycle,
        lease_id,
        lease_epoch,
        worker_id,
        worker_instance_id,
        created_at,
        started_at,
    ],
    or_default: [ended_at, reason, category, detail, suspended_at, resumed_at, lineage, taken],
});

impl Attempt {
    /// Parks it; the same attempt goes on later.
    pub fn park(&mut self, now: TimestampMs) {
        self.lifecycle = AttemptLifecycle::Suspended;
        self.suspended_at = Some(now);
    }

    /// Parks it while its owner holds it, without asking the owner.
    pub fn take_away(&mut self, now: TimestampMs) {
        self.taken = self.lifecycle == AttemptLifecycle::Started;
        self.park(now);
    }

    /// A new owner continues it.
    pub fn resume(
        &mut self,
        lease_id: LeaseId,
        epoch: LeaseEpoch,
        worker_id: WorkerId,
        instance: WorkerInstanceId,
        now: TimestampMs,
    ) {
        self.lifecycle = AttemptLifecycle::Started;
        self.taken = false;
        self.lease_id = lease_id;
        self.lease_epoch = epoch;
        self.worker_id = worker_id;
        self.worker_instance_id = instance;
        self.resumed_at = Some(now);
    }

    /// Ends it for good; an ended attempt never changes again.
    pub fn end(&mut self, end: AttemptEnd, now: TimestampMs) {
        if self.lifecycle.is_ended() {
            return;
        }
        self.taken = end.taken && self.lifecycle == AttemptLifecycle::Started;
        self.lifecycle = end.lifecycle;
        self.reason = end.reason;
        self.category = end.category;
        self.ended_at = Some(now);
    }
}

impl Stored for Attempt {
    fn key(&self) -> Key {
        Key::attempt(self.execution, self.index)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::AttemptsOf(self.execution), Position::new(i64::from(self.index.0), [])));
    }

    fn topics(&self, out: &mut Vec<Topic>) {
        if self.taken {
            out.push(Topic::Worker(self.worker_instance_id.clone()));
        }
    }
}

/// What one attempt reported as used, over all budgets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct AttemptUsage {
    pub execution: ExecutionId,
    pub index: AttemptIndex,
    pub used: BTreeMap<String, u64>,
}

impl Stored for AttemptUsage {
    fn key(&self) -> Key {
        Key::attempt_usage(self.execution, self.index)
    }
}
