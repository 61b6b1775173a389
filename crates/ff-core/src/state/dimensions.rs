//! The dimensions, one vocabulary each.

use crate::words::words;

words! {
    /// Major phase.
    pub enum LifecyclePhase {
        /// May be or become claimable.
        Runnable = "runnable",
        /// An attempt owns it; the lease may be live, expired or revoked.
        Active = "active",
        /// Deliberately parked on a waitpoint.
        Suspended = "suspended",
        /// Finished; only a replay leaves it.
        Terminal = "terminal",
    }
}

words! {
    /// Who may mutate.
    pub enum OwnershipState {
        /// Nobody holds a lease.
        Unowned = "unowned",
        /// A worker holds a lease.
        Leased = "leased",
        /// The lease ran out without renewal.
        LeaseExpiredReclaimable = "lease_expired_reclaimable",
        /// The lease was taken away.
        LeaseRevoked = "lease_revoked",
    }
}

words! {
    /// Whether it can be claimed now.
    pub enum EligibilityState {
        /// Yes.
        EligibleNow = "eligible_now",
        /// Not before a time.
        NotEligibleUntilTime = "not_eligible_until_time",
        /// Waits for upstreams or children.
        BlockedByDependencies = "blocked_by_dependencies",
        /// A budget is spent.
        BlockedByBudget = "blocked_by_budget",
        /// A quota is full.
        BlockedByQuota = "blocked_by_quota",
        /// No live worker has the required capabilities.
        BlockedByRoute = "blocked_by_route",
        /// A rule holds it.
        BlockedByLaneState = "blocked_by_lane_state",
        /// A person holds it.
        BlockedByOperator = "blocked_by_operator",
        /// The phase is not runnable.
        NotApplicable = "not_applicable",
    }
}

words! {
    /// The most specific explanation of why nothing happens.
    pub enum BlockingReason {
        /// Not blocked.
        None = "none",
        /// Claimable or reclaimable; nobody came yet.
        WaitingForWorker = "waiting_for_worker",
        /// Retry delay.
        WaitingForRetryBackoff = "waiting_for_retry_backoff",
        /// Delay after a resume.
        WaitingForResumeDelay = "waiting_for_resume_delay",
        /// Delay asked for at submission or by the worker.
        WaitingForDelay = "waiting_for_delay",
        /// Suspended on a signal.
        WaitingForSignal = "waiting_for_signal",
        /// Suspended on an approval.
        WaitingForApproval = "waiting_for_approval",
        /// Suspended on a callback.
        WaitingForCallback = "waiting_for_callback",
        /// Suspended on a tool's result.
        WaitingForToolResult = "waiting_for_tool_result",
        /// Upstreams or children are outstanding.
        WaitingForChildren = "waiting_for_children",
        /// A budget denied admission.
        WaitingForBudget = "waiting_for_budget",
        /// A quota denied admission.
        WaitingForQuota = "waiting_for_quota",
        /// No live worker has the capabilities.
        WaitingForCapableWorker = "waiting_for_capable_worker",
        /// Held by a person.
        PausedByOperator = "paused_by_operator",
        /// Held by a rule.
        PausedByPolicy = "paused_by_policy",
        /// Unclaimed member of a cancelled flow.
        PausedByFlowCancel = "paused_by_flow_cancel",
    }
}

words! {
    /// How it ended.
    pub enum TerminalOutcome {
        /// Not ended.
        None = "none",
        /// Completed.
        Success = "success",
        /// Failed for good.
        Failed = "failed",
        /// Cancelled.
        Cancelled = "cancelled",
        /// A deadline or timeout ended it.
        Expired = "expired",
        /// A required dependency became impossible.
        Skipped = "skipped",
    }
}

words! {
    /// What the next or current attempt is.
    pub enum AttemptState {
        /// No attempt context.
        None = "none",
        /// Awaits its first claim.
        PendingFirstAttempt = "pending_first_attempt",
        /// Runs.
        RunningAttempt = "running_attempt",
        /// Parked or orphaned; the same attempt may go on.
        AttemptInterrupted = "attempt_interrupted",
        /// The next claim creates a retry.
        PendingRetryAttempt = "pending_retry_attempt",
        /// The next claim creates a replay.
        PendingReplayAttempt = "pending_replay_attempt",
        /// The last attempt ended.
        AttemptTerminal = "attempt_terminal",
    }
}

words! {
    /// The label users see, derived from the dimensions.
    pub enum PublicState {
        /// Claimable, or held by a route, a rule or a person.
        Waiting = "waiting",
        /// Not before a time.
        Delayed = "delayed",
        /// Held by a budget or a quota.
        RateLimited = "rate_limited",
        /// Waits for upstreams or children.
        WaitingChildren = "waiting_children",
        /// An attempt owns it.
        Active = "active",
        /// Parked on a waitpoint.
        Suspended = "suspended",
        /// A label of other engines for a resumed execution; understood, never produced.
        Resumable = "resumable",
        /// Ended well.
        Completed = "completed",
        /// Failed for good.
        Failed = "failed",
        /// Cancelled.
        Cancelled = "cancelled",
        /// Ended by a deadline or timeout.
        Expired = "expired",
        /// Never ran, because a dependency became impossible.
        Skipped = "skipped",
    }
}

impl PublicState {
    /// Whether the execution is over.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Expired | Self::Skipped)
    }
}
