//! An execution: the narrow hot record of state and ownership.

use ff_core::TimestampMs;
use ff_core::backend::suspension::SuspendedCursor;
use ff_core::ids::{
    AttemptId, AttemptIndex, BudgetId, ExecutionId, ExecutionKind, FlowId, LaneId, LeaseEpoch, LeaseFence, LeaseId,
    Namespace, QuotaPolicyId, WaitpointId, WorkerId, WorkerInstanceId,
};
use ff_core::state::{EligibilityState, LifecyclePhase, OwnershipState, PublicState, StateVector};
use serde::{Deserialize, Serialize};

use super::sparse::sparse;
use super::{Gate, QueueClass, Stored};
use crate::index::{DueKind, Entry, Index, Position, Topic};
use crate::key::Key;

/// The highest priority; higher ones are clamped.
pub const RANK_PRIORITY_MAX: i32 = 9000;

/// Bits of a rank that tell the time.
const RANK_TIME_BITS: u32 = 48;

/// The order of claims inside a lane: higher priority first, then earlier creation. Opaque to everybody else.
#[must_use]
pub fn rank(priority: i32, created_at: TimestampMs) -> i64 {
    (i64::from(RANK_PRIORITY_MAX - priority) << RANK_TIME_BITS) | (created_at.0 & ((1 << RANK_TIME_BITS) - 1))
}

/// The lowest rank of the same priority.
#[must_use]
pub const fn rank_floor(rank: i64) -> i64 {
    rank >> RANK_TIME_BITS << RANK_TIME_BITS
}

/// Ownership as it is held, or as it was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Identity of this acquisition.
    pub id: LeaseId,
    /// Who asked for it.
    pub worker_id: WorkerId,
    /// Which process.
    pub worker_instance_id: WorkerInstanceId,
    /// How long a renewal lasts.
    pub ttl_ms: u64,
    /// When it was granted.
    pub acquired_at: TimestampMs,
    /// When it was last renewed.
    pub renewed_at: Option<TimestampMs>,
    /// When it ends unless renewed.
    pub expires_at: TimestampMs,
    /// When an operator took it away, and why.
    pub revoked: Option<(TimestampMs, String)>,
}

/// How the worker parked the attempt, to recognise a repeated call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParkMarker {
    /// Until a time.
    WorkerDelay {
        /// As the worker asked.
        until: TimestampMs,
    },
    /// Until its children end.
    WaitingChildren,
}

/// What the next claim will create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PendingLineage {
    /// A retry.
    Retry {
        /// Why the previous attempt failed.
        reason: String,
        /// Which attempt that was.
        previous: AttemptIndex,
        /// When it may begin; kept when that time has come, so that a repeated call gets the first answer.
        at: TimestampMs,
    },
    /// A replay.
    Replay {
        /// Why an operator asked.
        reason: String,
        /// Who asked.
        requested_by: String,
        /// The last attempt before, if any.
        from: Option<AttemptIndex>,
    },
}

/// Why an execution failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For people.
    pub reason: String,
    /// For policies.
    pub category: String,
}

/// Why an execution was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancellation {
    /// For people.
    pub reason: String,
    /// The source, or the worker.
    pub by: String,
}

/// State and ownership of one execution.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Execution {
    pub id: ExecutionId,
    pub namespace: Namespace,
    pub lane: LaneId,
    /// Its kind is a part of it.
    pub class: QueueClass,
    pub priority: i32,
    pub(super) state: StateVector,
    pub blocking_detail: Option<String>,
    pub created_at: TimestampMs,
    pub last_mutation_at: TimestampMs,
    pub started_at: Option<TimestampMs>,
    pub completed_at: Option<TimestampMs>,

    /// Never decreases, never reset.
    pub epoch: LeaseEpoch,
    pub lease: Option<Lease>,
    pub attempt_count: u32,
    pub attempt_index: AttemptIndex,
    /// Kept on terminal records; cleared when a retry is scheduled.
    pub attempt_id: Option<AttemptId>,
    pub pending_lineage: Option<PendingLineage>,
    pub park_marker: Option<ParkMarker>,

    /// When a delay, a retry or a denial ends.
    pub wake_at: Option<TimestampMs>,
    /// A delay that outlives the wait for dependencies.
    pub remembered_delay: Option<TimestampMs>,
    pub blocked_at: Option<TimestampMs>,
    /// The policy that denied admission.
    pub blocked_by: Option<Gate>,
    pub deadline_at: Option<TimestampMs>,
    pub attempt_timeout_at: Option<TimestampMs>,
    pub attempt_time_left_ms: Option<u64>,
    /// When an expired lease may be reclaimed by a claim, and whether that time has come.
    pub reclaim_at: Option<TimestampMs>,
    pub reclaim_open: bool,

    pub retry_count: u32,
    pub reclaim_count: u32,
    pub consecutive_reclaims: u32,
    pub replay_count: u32,

    pub suspension: Option<u32>,
    pub suspension_count: u32,
    pub suspension_timeout_at: Option<TimestampMs>,
    pub current_waitpoint: Option<WaitpointId>,

    pub flow_id: Option<FlowId>,
    /// The group into which newly applied edges go.
    pub dependency_generation: u32,

    pub failure: Option<Failure>,
    pub cancellation: Option<Cancellation>,
    pub budget_ids: Vec<BudgetId>,
    pub quota_policy_ids: Vec<QuotaPolicyId>,
    pub retention_ms: Option<u64>,
    pub tagged: bool,
    pub has_result: bool,
    pub last_capability_mismatch_at: Option<TimestampMs>,
    /// A purge has begun to take away what belongs to it, so nothing opens it again.
    pub purging: bool,
    /// Somebody parked it, rather than the engine for want of a worker.
    pub parked_by_hand: bool,
    /// The ordinal of the first suspension of this life.
    pub first_suspension: u32,
    /// It is over and was found to be needed still: retention looks at it again then.
    pub kept_until: Option<TimestampMs>,
    /// Whether a waitpoint was ever opened for it; without one there is none to close at its end.
    pub(super) had_waitpoints: bool,
}

sparse!(Execution {
    known: [id: ExecutionId],
    always: [namespace, lane, class, state, created_at, last_mutation_at, epoch],
    or_default: [
        priority,
        attempt_count,
        attempt_id,
        started_at,
        lease,
        completed_at,
        has_result,
        attempt_index,
        tagged,
        flow_id,
        deadline_at,
        retention_ms,
        had_waitpoints,
        suspension,
        suspension_count,
        suspension_timeout_at,
        current_waitpoint,
        attempt_timeout_at,
        retry_count,
        failure,
        wake_at,
        pending_lineage,
        blocking_detail,
        budget_ids,
        quota_policy_ids,
        blocked_at,
        blocked_by,
        reclaim_at,
        reclaim_open,
        reclaim_count,
        consecutive_reclaims,
        cancellation,
        park_marker,
        dependency_generation,
        remembered_delay,
        attempt_time_left_ms,
        replay_count,
        first_suspension,
        kept_until,
        last_capability_mismatch_at,
        purging,
        parked_by_hand,
    ],
});

impl Execution {
    /// The state dimensions.
    #[must_use]
    pub const fn state(&self) -> StateVector {
        self.state
    }

    /// The label users see.
    #[must_use]
    pub const fn public_state(&self) -> PublicState {
        self.state.public_state()
    }

    /// Whether a waitpoint was ever opened for it.
    #[must_use]
    pub const fn had_waitpoints(&self) -> bool {
        self.had_waitpoints
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.state.lifecycle_phase == LifecyclePhase::Terminal
    }

    /// Whether an attempt owns it, whatever became of the lease.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state.lifecycle_phase == LifecyclePhase::Active
    }

    /// Whether it may be or become claimable.
    #[must_use]
    pub fn is_runnable(&self) -> bool {
        self.state.lifecycle_phase == LifecyclePhase::Runnable
    }

    /// Whether it is parked on a waitpoint.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.state.lifecycle_phase == LifecyclePhase::Suspended
    }

    /// Whether a worker may claim it now.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.is_runnable() && self.state.eligibility_state == EligibilityState::EligibleNow
    }

    /// Whether it gave its lease back to wait for its children.
    #[must_use]
    pub fn waits_for_children(&self) -> bool {
        self.park_marker == Some(ParkMarker::WaitingChildren)
    }

    /// Whether its lease expired or was revoked.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.state.ownership_state, OwnershipState::LeaseExpiredReclaimable | OwnershipState::LeaseRevoked)
    }

    /// Whether a worker holds it.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.state.ownership_state == OwnershipState::Leased
    }

    /// Whether a worker holds it whose time is up.
    #[must_use]
    pub fn is_overdue(&self, now: TimestampMs) -> bool {
        self.is_leased() && self.lease.as_ref().is_none_or(|lease| lease.expires_at.is_due(now))
    }

    /// Whether the end of an ownership is owed to quotas.
    #[must_use]
    pub fn owes_quotas(&self) -> bool {
        !self.quota_policy_ids.is_empty()
    }

    /// Whether a budget or a quota has a say in when it starts.
    #[must_use]
    pub const fn needs_admission(&self) -> bool {
        !self.budget_ids.is_empty() || !self.quota_policy_ids.is_empty()
    }

    /// What sort of work it is.
    #[must_use]
    pub const fn kind(&self) -> &ExecutionKind {
        &self.class.kind
    }

    /// Its place in the queue.
    #[must_use]
    pub fn rank(&self) -> i64 {
        rank(self.priority, self.created_at)
    }

    /// The fence of the lease, while there is one.
    #[must_use]
    pub fn fence(&self) -> Option<LeaseFence> {
        let lease = self.lease.as_ref()?;
        Some(LeaseFence { lease_id: lease.id, lease_epoch: self.epoch, attempt_id: self.attempt_id? })
    }

    /// Ownership only.
    #[must_use]
    pub fn ownership(&self) -> Fence {
        Fence {
            execution: self.id,
            state: self.state,
            epoch: self.epoch,
            lease_id: self.lease.as_ref().map(|lease| lease.id),
            lease_expires_at: self.lease.as_ref().map(|lease| lease.expires_at),
            attempt_index: self.attempt_index,
            attempt_id: self.attempt_id,
            flow_id: self.flow_id,
            namespace: self.namespace.clone(),
            replay_count: self.replay_count,
        }
    }

    fn due(&self, out: &mut Vec<Entry>, kind: DueKind, at: Option<TimestampMs>) {
        if let Some(at) = at {
            out.push(Entry::new(Index::Due(kind), Position::at(at, self.id.to_bytes())));
        }
    }

    fn queue_entries(&self, out: &mut Vec<Entry>) {
        let ranked = || Position::of(self.rank(), self.id);
        if self.is_eligible() {
            out.push(Entry::new(
                Index::Eligible(self.namespace.clone(), self.lane.clone(), self.class.clone()),
                ranked(),
            ));
            out.push(Entry::new(Index::EligibleIn(self.id.partition(), self.lane.clone()), ranked()));
        }
        if self.reclaim_open {
            out.push(Entry::new(
                Index::Reclaimable(self.namespace.clone(), self.lane.clone(), self.class.clone()),
                ranked(),
            ));
        }
        let parked = || Position::of(self.blocked_at.map_or(0, |at| at.0), self.id);
        match self.state.eligibility_state {
            EligibilityState::BlockedByRoute => {
                let (namespace, lane, route) = (self.namespace.clone(), self.lane.clone(), self.class.route());
                // Any claim could take what requires nothing, so none may undo that somebody parked it.
                let index = if self.parked_by_hand && self.class.requirement.is_empty() {
                    Index::RouteHeld(namespace, lane, route)
                } else {
                    Index::RouteParked(namespace, lane, route)
                };
                out.push(Entry::new(index, parked()));
            }
            EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota => match self.blocked_by {
                Some(Gate::Budget(budget)) => out.push(Entry::new(Index::BudgetParked(budget), parked())),
                Some(Gate::Quota(quota)) => out.push(Entry::new(Index::QuotaParked(quota), parked())),
                None => {}
            },
            _ => {}
        }
    }

    fn lease_entries(&self, out: &mut Vec<Entry>) {
        let Some(lease) = &self.lease else { return };
        if self.is_leased() {
            self.due(out, DueKind::LeaseExpiry, Some(lease.expires_at));
        } else if self.is_lost() {
            out.push(Entry::new(Index::LostLeases, Position::of(lease.expires_at.0, self.id)));
            if !self.reclaim_open {
                self.due(out, DueKind::ReclaimBackoff, self.reclaim_at);
            }
        }
    }

    fn timer_entries(&self, out: &mut Vec<Entry>) {
        match self.state.eligibility_state {
            EligibilityState::NotEligibleUntilTime => {
                self.due(out, DueKind::Delay, Some(self.wake_at.unwrap_or(TimestampMs::ZERO)));
            }
            EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota => {
                self.due(out, DueKind::Readmission, self.wake_at);
            }
            _ => {}
        }
        if !self.is_terminal() {
            self.due(out, DueKind::Deadline, self.deadline_at);
        }
        if self.is_active() {
            self.due(out, DueKind::AttemptTimeout, self.attempt_timeout_at);
        }
        if self.is_suspended() {
            self.due(out, DueKind::SuspensionTimeout, self.suspension_timeout_at);
        }
    }

    fn list_entries(&self, out: &mut Vec<Entry>) {
        let home = self.id.partition();
        let by_id = || Position::by(self.id.to_bytes());
        let newest = || Position::of(-self.created_at.0, self.id);
        let state = self.public_state();
        out.push(Entry::new(Index::ExecutionsIn(home), by_id()));
        out.push(Entry::new(Index::Created, newest()));
        out.push(Entry::new(Index::CreatedIn(self.namespace.clone()), newest()));
        out.push(Entry::new(Index::LaneState(self.lane.clone(), state), newest()));
        out.push(Entry::new(Index::KindState(self.kind().clone(), state), newest()));
        if self.is_suspended() {
            let place = SuspendedCursor::at(self.suspension_timeout_at, self.id);
            out.push(Entry::new(Index::SuspendedIn(home), Position::of(place.timeout_at_ms, self.id)));
        }
        if let Some(completed_at) = self.completed_at {
            let by_completion = || Position::of(completed_at.0, self.id);
            out.push(Entry::new(Index::TerminalIn(home, self.lane.clone()), by_completion()));
            let own_end = self.retention_ms.map(|own_ms| completed_at.plus(own_ms));
            match self.kept_until.or(own_end) {
                Some(at) => self.due(out, DueKind::Retention, Some(at)),
                None => out.push(Entry::new(Index::Terminal, by_completion())),
            }
        } else {
            for budget in &self.budget_ids {
                out.push(Entry::new(Index::AttachedTo(*budget), by_id()));
            }
        }
        if let Some(flow) = self.flow_id {
            out.push(Entry::new(Index::MembersOf(home, flow), by_id()));
            if !self.is_terminal() {
                out.push(Entry::new(Index::LiveMembersOf(home, flow), by_id()));
                if !self.is_active() {
                    out.push(Entry::new(Index::PendingMembersOf(home, flow), by_id()));
                }
            }
        }
    }
}

impl Stored for Execution {
    fn key(&self) -> Key {
        Key::execution(self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        // About as many as most have.
        out.reserve(10);
        self.queue_entries(out);
        self.lease_entries(out);
        self.timer_entries(out);
        self.list_entries(out);
    }

    fn topics(&self, out: &mut Vec<Topic>) {
        if self.is_eligible() || self.reclaim_open {
            out.push(Topic::Lane(self.lane.clone()));
        }
        if self.is_terminal() {
            out.push(Topic::Execution(self.id));
            out.extend(self.flow_id.map(Topic::Flow));
        }
        // The lease stays on the record until somebody takes over or it ends, and the attempt tells of that.
        if let (true, Some(lease)) = (self.is_lost(), &self.lease) {
            out.push(Topic::Worker(lease.worker_instance_id.clone()));
        }
    }
}

/// Ownership of an execution, as light-fence operations read it. Part of the execution; never written on its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Fence {
    pub execution: ExecutionId,
    pub state: StateVector,
    pub epoch: LeaseEpoch,
    pub lease_id: Option<LeaseId>,
    pub lease_expires_at: Option<TimestampMs>,
    pub attempt_index: AttemptIndex,
    pub attempt_id: Option<AttemptId>,
    pub flow_id: Option<FlowId>,
    pub namespace: Namespace,
    pub replay_count: u32,
}

impl Fence {
    /// Whether the same owner holds it in the same way. A renewal keeps it: an expiry that was read is a lower bound.
    #[must_use]
    pub fn same_owner(&self, other: &Self) -> bool {
        self.state.lifecycle_phase == other.state.lifecycle_phase
            && self.state.ownership_state == other.state.ownership_state
            && self.epoch == other.epoch
            && self.lease_id == other.lease_id
            && self.attempt_index == other.attempt_index
            && self.attempt_id == other.attempt_id
    }
}

impl Stored for Fence {
    fn key(&self) -> Key {
        Key::fence(self.execution)
    }
}
