//! Every way an execution changes, by name. Nobody else assembles a state.
//!
//! ```text
//!            create
//!              │
//!              ▼        claim / resume_claim          complete, fail, cancel, expire
//!   ┌─────► runnable ───────────────────────► active ───────────────────────────────► terminal
//!   │        ▲  ▲                              │ │ ▲                                    │
//!   │        │  └── schedule_retry, delay, ────┘ │ └─ reclaim (after expire_lease,       │
//!   │        │      wait_children                │            revoke_lease)             │
//!   │      resume                             suspend                                   │
//!   │        └────────────── suspended ◄─────────┘                                      │
//!   └───────────────────────────── replay ──────────────────────────────────────────────┘
//! ```

use ff_core::TimestampMs;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{
    AttemptId, AttemptIndex, BudgetId, ExecutionId, FlowId, LaneId, LeaseEpoch, LeaseId, Namespace, QuotaPolicyId,
    WaitpointId, WorkerId, WorkerInstanceId,
};
use ff_core::state::{
    AttemptState, AttemptType, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, StateVector,
    TerminalOutcome,
};

use super::{
    Cancellation, Execution, Failure, Gate, Lease, Lineage, ParkMarker, PendingLineage, QueueClass, RANK_PRIORITY_MAX,
};

/// What a new execution is made of.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct NewExecution {
    pub id: ExecutionId,
    pub namespace: Namespace,
    pub lane: LaneId,
    pub class: QueueClass,
    pub priority: i32,
    pub delay_until: Option<TimestampMs>,
    pub deadline_at: Option<TimestampMs>,
    pub budget_ids: Vec<BudgetId>,
    pub quota_policy_ids: Vec<QuotaPolicyId>,
    pub retention_ms: Option<u64>,
    pub tagged: bool,
}

/// Who takes an execution, and for how long.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Taker {
    pub lease_id: LeaseId,
    pub worker_id: WorkerId,
    pub worker_instance_id: WorkerInstanceId,
    pub ttl_ms: u64,
}

/// Ownership that ended: what it was, for history and settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Release {
    pub lease: Lease,
    pub epoch: LeaseEpoch,
}

fn runnable(eligibility: EligibilityState, reason: BlockingReason, attempt: AttemptState) -> StateVector {
    StateVector {
        lifecycle_phase: LifecyclePhase::Runnable,
        ownership_state: OwnershipState::Unowned,
        eligibility_state: eligibility,
        blocking_reason: reason,
        terminal_outcome: TerminalOutcome::None,
        attempt_state: attempt,
    }
}

fn active(ownership: OwnershipState, reason: BlockingReason, attempt: AttemptState) -> StateVector {
    StateVector {
        lifecycle_phase: LifecyclePhase::Active,
        ownership_state: ownership,
        eligibility_state: EligibilityState::NotApplicable,
        blocking_reason: reason,
        terminal_outcome: TerminalOutcome::None,
        attempt_state: attempt,
    }
}

fn suspended(reason: BlockingReason) -> StateVector {
    StateVector {
        lifecycle_phase: LifecyclePhase::Suspended,
        ownership_state: OwnershipState::Unowned,
        eligibility_state: EligibilityState::NotApplicable,
        blocking_reason: reason,
        terminal_outcome: TerminalOutcome::None,
        attempt_state: AttemptState::AttemptInterrupted,
    }
}

impl Execution {
    /// A new execution: claimable, or delayed when its time lies ahead.
    #[must_use]
    pub fn create(new: NewExecution, now: TimestampMs) -> Self {
        let mut execution = Self {
            id: new.id,
            namespace: new.namespace,
            lane: new.lane,
            class: new.class,
            priority: new.priority.clamp(0, RANK_PRIORITY_MAX),
            state: runnable(
                EligibilityState::EligibleNow,
                BlockingReason::WaitingForWorker,
                AttemptState::PendingFirstAttempt,
            ),
            blocking_detail: None,
            created_at: now,
            last_mutation_at: now,
            started_at: None,
            completed_at: None,
            epoch: LeaseEpoch(0),
            lease: None,
            attempt_count: 0,
            attempt_index: AttemptIndex(0),
            attempt_id: None,
            pending_lineage: None,
            park_marker: None,
            wake_at: None,
            remembered_delay: None,
            blocked_at: None,
            blocked_by: None,
            deadline_at: new.deadline_at,
            attempt_timeout_at: None,
            attempt_time_left_ms: None,
            reclaim_at: None,
            reclaim_open: false,
            retry_count: 0,
            reclaim_count: 0,
            consecutive_reclaims: 0,
            replay_count: 0,
            suspension: None,
            suspension_count: 0,
            suspension_timeout_at: None,
            current_waitpoint: None,
            flow_id: None,
            dependency_generation: 0,
            failure: None,
            cancellation: None,
            budget_ids: new.budget_ids,
            quota_policy_ids: new.quota_policy_ids,
            retention_ms: new.retention_ms,
            tagged: new.tagged,
            has_result: false,
            last_capability_mismatch_at: None,
            purging: false,
            parked_by_hand: false,
            first_suspension: 0,
            kept_until: None,
            had_waitpoints: false,
        };
        if let Some(until) = new.delay_until.filter(|until| !until.is_due(now)) {
            execution.hold_until(until, BlockingReason::WaitingForDelay);
        }
        execution
    }

    fn touch(&mut self, now: TimestampMs) {
        self.last_mutation_at = now;
    }

    fn hold_until(&mut self, until: TimestampMs, reason: BlockingReason) {
        self.state = runnable(EligibilityState::NotEligibleUntilTime, reason, self.state.attempt_state);
        self.wake_at = Some(until);
    }

    fn make_eligible(&mut self) {
        let attempt = match self.state.attempt_state {
            AttemptState::None => AttemptState::PendingFirstAttempt,
            other => other,
        };
        self.state = runnable(EligibilityState::EligibleNow, BlockingReason::WaitingForWorker, attempt);
        self.wake_at = None;
        self.remembered_delay = None;
        self.clear_block();
    }

    fn clear_block(&mut self) {
        self.blocked_at = None;
        self.blocked_by = None;
        self.blocking_detail = None;
        self.parked_by_hand = false;
    }

    fn own(&mut self, taker: Taker, now: TimestampMs) {
        if !is_on(Fault::EpochNotRaised) {
            self.epoch = self.epoch.next();
        }
        self.lease = Some(Lease {
            id: taker.lease_id,
            worker_id: taker.worker_id,
            worker_instance_id: taker.worker_instance_id,
            ttl_ms: taker.ttl_ms,
            acquired_at: now,
            renewed_at: None,
            expires_at: now.plus(taker.ttl_ms),
            revoked: None,
        });
        self.state = active(OwnershipState::Leased, BlockingReason::None, AttemptState::RunningAttempt);
        if self.started_at.is_none() || is_on(Fault::StartTimeMoves) {
            self.started_at = Some(now);
        }
        self.park_marker = None;
        self.wake_at = None;
        self.reclaim_at = None;
        self.reclaim_open = false;
        self.clear_block();
        self.touch(now);
    }

    fn new_attempt(&mut self, attempt_id: AttemptId) {
        self.attempt_index = AttemptIndex(self.attempt_count);
        self.attempt_count += u32::from(!is_on(Fault::AttemptIndexReused));
        self.attempt_id = Some(attempt_id);
        self.attempt_time_left_ms = None;
    }

    /// Gives it to a worker with a new attempt; says what kind of attempt and where it comes from.
    pub fn claim(&mut self, taker: Taker, attempt_id: AttemptId, now: TimestampMs) -> (AttemptType, Option<Lineage>) {
        let origin = match self.pending_lineage.take() {
            None => (AttemptType::Initial, None),
            Some(PendingLineage::Retry { reason, previous, .. }) => {
                (AttemptType::Retry, Some(Lineage { reason, requested_by: None, previous: Some(previous) }))
            }
            Some(PendingLineage::Replay { reason, requested_by, from }) => {
                (AttemptType::Replay, Some(Lineage { reason, requested_by: Some(requested_by), previous: from }))
            }
        };
        self.own(taker, now);
        self.new_attempt(attempt_id);
        origin
    }

    /// Gives it to a worker that continues the same attempt.
    pub fn resume_claim(&mut self, taker: Taker, now: TimestampMs) {
        self.own(taker, now);
    }

    /// Gives a lost execution to another worker with a new attempt.
    pub fn reclaim(&mut self, taker: Taker, attempt_id: AttemptId, now: TimestampMs) {
        self.own(taker, now);
        self.new_attempt(attempt_id);
        self.reclaim_count += 1;
        self.consecutive_reclaims += 1;
    }

    /// Arms the attempt timeout, or disarms it.
    pub fn arm_attempt_timeout(&mut self, after_ms: Option<u64>, now: TimestampMs) {
        self.attempt_timeout_at = after_ms.filter(|ms| *ms > 0).map(|ms| now.plus(ms));
        self.attempt_time_left_ms = None;
    }

    /// Extends the lease.
    pub fn renew(&mut self, ttl_ms: u64, now: TimestampMs) {
        if let Some(lease) = &mut self.lease {
            lease.ttl_ms = ttl_ms;
            lease.renewed_at = Some(now);
            lease.expires_at = now.plus(ttl_ms);
        }
        self.touch(now);
    }

    /// The lease ran out: the attempt is orphaned, and claims may take it over from `reclaim_at` on.
    pub fn expire_lease(&mut self, reclaim_at: TimestampMs, now: TimestampMs) {
        self.state = active(
            OwnershipState::LeaseExpiredReclaimable,
            BlockingReason::WaitingForWorker,
            AttemptState::AttemptInterrupted,
        );
        self.reclaim_at = Some(reclaim_at);
        self.reclaim_open = reclaim_at.is_due(now);
        self.attempt_timeout_at = None;
        self.touch(now);
    }

    /// The backoff before a reclaim is over.
    pub fn open_for_reclaim(&mut self, now: TimestampMs) {
        self.reclaim_open = true;
        self.touch(now);
    }

    /// A policy denied the reclaim: claims look at it again from `at` on.
    pub fn postpone_reclaim(&mut self, at: TimestampMs, now: TimestampMs) {
        self.reclaim_at = Some(at);
        self.reclaim_open = at.is_due(now);
        self.touch(now);
    }

    /// An operator took the lease away; only an explicit grant lets somebody take over.
    pub fn revoke_lease(&mut self, reason: String, now: TimestampMs) {
        self.state =
            active(OwnershipState::LeaseRevoked, BlockingReason::WaitingForWorker, AttemptState::AttemptInterrupted);
        if let Some(lease) = &mut self.lease {
            lease.revoked = Some((now, reason));
        }
        self.attempt_timeout_at = None;
        self.touch(now);
    }

    fn release(&mut self) -> Option<Release> {
        self.reclaim_at = None;
        self.reclaim_open = false;
        self.lease.take().map(|lease| Release { lease, epoch: self.epoch })
    }

    fn hand_back(&mut self, now: TimestampMs) -> Option<Release> {
        // An attempt whose time is up keeps one millisecond: none at all would mean no limit.
        self.attempt_time_left_ms = self.attempt_timeout_at.take().map(|at| at.since(now).max(1));
        self.consecutive_reclaims = 0;
        self.touch(now);
        self.release()
    }

    /// Parks the attempt on a waitpoint.
    pub fn suspend(
        &mut self,
        reason: BlockingReason,
        timeout_at: Option<TimestampMs>,
        waitpoint: WaitpointId,
        now: TimestampMs,
    ) -> Option<Release> {
        let release = self.pause(reason, now);
        self.suspension_timeout_at = timeout_at;
        self.current_waitpoint = Some(waitpoint);
        release
    }

    /// Parks the attempt until a person resumes it: nothing else can.
    pub fn pause(&mut self, reason: BlockingReason, now: TimestampMs) -> Option<Release> {
        let release = self.hand_back(now);
        self.state = suspended(reason);
        self.suspension = Some(self.suspension_count);
        self.suspension_count += 1;
        self.suspension_timeout_at = None;
        self.current_waitpoint = None;
        release
    }

    /// Counts a suspension whose condition held before it began; ownership stays. Says which episode it was.
    pub fn skip_suspension(&mut self, now: TimestampMs) -> u32 {
        let ordinal = self.suspension_count;
        self.suspension_count += 1;
        self.touch(now);
        ordinal
    }

    /// The timeout hands a suspension to a person; it stays suspended without a timeout.
    pub fn escalate_suspension(&mut self, now: TimestampMs) {
        self.state = suspended(BlockingReason::PausedByOperator);
        self.suspension_timeout_at = None;
        self.touch(now);
    }

    /// Leaves the suspension: claimable by a worker that continues the attempt, at once or after a delay.
    pub fn resume(&mut self, delay_until: Option<TimestampMs>, now: TimestampMs) {
        self.clear_suspension();
        self.make_eligible();
        if let Some(until) = delay_until.filter(|until| !until.is_due(now)) {
            self.hold_until(until, BlockingReason::WaitingForResumeDelay);
        }
        self.touch(now);
    }

    fn clear_suspension(&mut self) {
        self.suspension = None;
        self.suspension_timeout_at = None;
        self.current_waitpoint = None;
    }

    /// The worker parks the attempt until a time.
    pub fn worker_delay(&mut self, until: TimestampMs, now: TimestampMs) -> Option<Release> {
        let release = self.hand_back(now);
        self.state.attempt_state = AttemptState::AttemptInterrupted;
        self.hold_until(until, BlockingReason::WaitingForDelay);
        self.park_marker = Some(ParkMarker::WorkerDelay { until });
        release
    }

    /// The worker parks the attempt until its children end, or hands it back at once when none is open.
    pub fn wait_children(&mut self, open: bool, now: TimestampMs) -> Option<Release> {
        let release = self.hand_back(now);
        self.state.attempt_state = AttemptState::AttemptInterrupted;
        self.make_eligible();
        if open {
            self.wait_for_dependencies(now);
        }
        self.park_marker = Some(ParkMarker::WaitingChildren);
        release
    }

    /// Dependencies hold a runnable execution; a delay it had is remembered, an admission block is not.
    pub fn wait_for_dependencies(&mut self, now: TimestampMs) {
        if self.state.eligibility_state == EligibilityState::NotEligibleUntilTime {
            self.remembered_delay = self.wake_at;
        }
        self.clear_block();
        self.wake_at = None;
        self.blocked_at = Some(now);
        self.state = runnable(
            EligibilityState::BlockedByDependencies,
            BlockingReason::WaitingForChildren,
            self.state.attempt_state,
        );
        self.touch(now);
    }

    /// Dependencies are satisfied: claimable, or delayed when a remembered delay lies ahead.
    pub fn dependencies_satisfied(&mut self, now: TimestampMs) {
        let delay = self.remembered_delay.filter(|until| !until.is_due(now));
        self.make_eligible();
        if let Some(until) = delay {
            self.hold_until(until, BlockingReason::WaitingForDelay);
        }
        self.touch(now);
    }

    /// Becomes a member of a flow.
    pub fn join_flow(&mut self, flow: FlowId, now: TimestampMs) {
        self.flow_id = Some(flow);
        self.touch(now);
    }

    /// The group of a generation is decided: edges staged from now on make up the next one.
    pub fn close_generation(&mut self, generation: u32) {
        self.dependency_generation = self.dependency_generation.max(generation + 1);
    }

    /// A delay or an admission block is over.
    pub fn promote(&mut self, now: TimestampMs) {
        self.make_eligible();
        self.touch(now);
    }

    /// Admission, a route, a rule or a person holds it; with a time when it is to be tried again, where that is known.
    pub fn block(
        &mut self,
        eligibility: EligibilityState,
        reason: BlockingReason,
        detail: Option<String>,
        gate: Option<Gate>,
        retry_at: Option<TimestampMs>,
        now: TimestampMs,
    ) {
        self.state = runnable(eligibility, reason, self.state.attempt_state);
        self.blocking_detail = detail;
        self.blocked_by = gate;
        self.blocked_at = Some(now);
        self.wake_at = retry_at;
        self.parked_by_hand = false;
        self.touch(now);
    }

    /// Somebody holds it back.
    pub fn block_by_hand(
        &mut self,
        eligibility: EligibilityState,
        reason: BlockingReason,
        detail: Option<String>,
        now: TimestampMs,
    ) {
        self.block(eligibility, reason, detail, None, None, now);
        self.parked_by_hand = true;
    }

    /// Another place in the queue.
    pub fn reprioritise(&mut self, priority: i32, now: TimestampMs) {
        self.priority = priority.clamp(0, RANK_PRIORITY_MAX);
        self.touch(now);
    }

    /// The attempt failed; the next claim after `at` makes a retry.
    pub fn schedule_retry(&mut self, at: TimestampMs, reason: String, now: TimestampMs) -> Option<Release> {
        let previous = self.attempt_index;
        self.attempt_timeout_at = None;
        self.attempt_time_left_ms = None;
        self.consecutive_reclaims = 0;
        let release = self.release();
        self.state.attempt_state = AttemptState::PendingRetryAttempt;
        self.hold_until(at, BlockingReason::WaitingForRetryBackoff);
        self.retry_count += 1;
        self.pending_lineage = Some(PendingLineage::Retry { reason, previous, at });
        self.attempt_id = None;
        self.touch(now);
        release
    }

    /// The end. Epoch and attempt stay, so that a caller whose reply was lost can recognise its own success.
    pub fn finish(
        &mut self,
        outcome: TerminalOutcome,
        failure: Option<Failure>,
        cancellation: Option<Cancellation>,
        now: TimestampMs,
    ) -> Option<Release> {
        let attempt = match (self.attempt_count, outcome) {
            (0, TerminalOutcome::Skipped) => AttemptState::None,
            (0, _) => self.state.attempt_state,
            _ => AttemptState::AttemptTerminal,
        };
        self.state = StateVector {
            lifecycle_phase: LifecyclePhase::Terminal,
            ownership_state: OwnershipState::Unowned,
            eligibility_state: EligibilityState::NotApplicable,
            blocking_reason: BlockingReason::None,
            terminal_outcome: outcome,
            attempt_state: attempt,
        };
        self.clear_suspension();
        self.clear_block();
        self.wake_at = None;
        self.remembered_delay = None;
        self.attempt_timeout_at = None;
        self.attempt_time_left_ms = None;
        self.pending_lineage = None;
        self.park_marker = None;
        self.completed_at = Some(now);
        self.failure = failure;
        self.cancellation = cancellation;
        self.touch(now);
        self.release()
    }

    /// A purge begins to take away what belongs to a terminal execution.
    pub const fn begin_purge(&mut self) {
        self.purging = true;
    }

    /// Somebody needs it still: retention leaves it alone until then.
    pub const fn keep_until(&mut self, at: TimestampMs) {
        self.kept_until = Some(at);
    }

    /// An operator re-opens a terminal execution; `waiting` says whether dependencies hold it again.
    pub fn replay(&mut self, reason: String, requested_by: String, waiting: bool, now: TimestampMs) {
        let from = self.attempt_count.checked_sub(1).map(AttemptIndex);
        self.state = runnable(
            EligibilityState::EligibleNow,
            BlockingReason::WaitingForWorker,
            AttemptState::PendingReplayAttempt,
        );
        self.replay_count += 1;
        self.first_suspension = self.suspension_count;
        if !is_on(Fault::ReplayKeepsRetries) {
            self.retry_count = 0;
        }
        self.consecutive_reclaims = 0;
        self.completed_at = None;
        self.failure = None;
        self.cancellation = None;
        self.has_result = false;
        self.kept_until = None;
        self.deadline_at = self.deadline_at.filter(|at| !at.is_due(now));
        self.pending_lineage = Some(PendingLineage::Replay { reason, requested_by, from });
        if waiting {
            self.wait_for_dependencies(now);
        }
        self.touch(now);
    }
}
