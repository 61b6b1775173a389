//! Deliberate faults: small wrong changes that the simulator switches on to prove that its checks notice them.
//!
//! Without the `faults` feature every question is answered "no" at compile time.

use crate::words::words;

words! {
    /// A wrong change in a rule or an operation.
    pub enum Fault {
        /// A fence is not compared with the stored one.
        FenceNotCompared = "fence_not_compared",
        /// A lease whose time is over still proves ownership.
        ExpiredLeaseHonoured = "expired_lease_honoured",
        /// Taking ownership does not raise the epoch.
        EpochNotRaised = "epoch_not_raised",
        /// Taking ownership leaves the grant in place.
        GrantKept = "grant_kept",
        /// A grant can be consumed by any worker.
        GrantOwnerIgnored = "grant_owner_ignored",
        /// Every worker covers every requirement.
        CapabilityIgnored = "capability_ignored",
        /// Every worker handles every kind.
        KindIgnored = "kind_ignored",
        /// A lost lease may be reclaimed without end.
        ReclaimCapIgnored = "reclaim_cap_ignored",
        /// A terminal transition emits no completion.
        CompletionNotEmitted = "completion_not_emitted",
        /// A permanent failure is retried.
        PermanentRetried = "permanent_retried",
        /// Failures are retried without end.
        RetryCountIgnored = "retry_count_ignored",
        /// A new attempt takes the index of the one before.
        AttemptIndexReused = "attempt_index_reused",
        /// Every claim sets the start time anew.
        StartTimeMoves = "start_time_moves",
        /// A replay keeps the retry count.
        ReplayKeepsRetries = "replay_keeps_retries",
        /// A delayed execution is promoted before its time.
        DelayCutShort = "delay_cut_short",
        /// A deadline that has come does nothing.
        DeadlineIgnored = "deadline_ignored",
        /// A cancellation rewrites a terminal execution.
        TerminalRewritten = "terminal_rewritten",
        /// An idempotency key is not looked up at creation.
        CreationKeyIgnored = "creation_key_ignored",
        /// Closing a suspension leaves its waitpoints open.
        WaitpointsLeftOpen = "waitpoints_left_open",
        /// A signal is not looked up before it is accepted.
        SignalDedupSkipped = "signal_dedup_skipped",
        /// All nodes of a condition count into one pool.
        SatisfiersPooled = "satisfiers_pooled",
        /// Buffered signals do not count when their waitpoint is bound.
        BufferedSignalsIgnored = "buffered_signals_ignored",
        /// The proof in a token is not verified.
        TokenNotVerified = "token_not_verified",
        /// A retired signing key verifies beyond its grace.
        RetiredKeyHonoured = "retired_key_honoured",
        /// An edge is staged whatever revision its author knows.
        StaleRevisionAccepted = "stale_revision_accepted",
        /// An edge may close a cycle.
        CycleAccepted = "cycle_accepted",
        /// A quorum is content with one success less.
        QuorumTooSmall = "quorum_too_small",
        /// A decided group is decided again by every further edge.
        GroupFiresAgain = "group_fires_again",
        /// A skipped member does not settle its own edges.
        SkipNotCascaded = "skip_not_cascaded",
        /// A group that lets its siblings run cancels them.
        LetRunCancels = "let_run_cancels",
        /// A flow whose members changed is not projected.
        ProjectionForgotten = "projection_forgotten",
        /// Usage is added beyond a hard limit.
        HardLimitIgnored = "hard_limit_ignored",
        /// A usage key is not looked up before it is applied.
        UsageDedupSkipped = "usage_dedup_skipped",
        /// A release gives back what was spent before a reset.
        LedgerSurvivesReset = "ledger_survives_reset",
        /// Ending ownership frees no quota slot.
        SlotNotFreed = "slot_not_freed",
        /// Freeing a slot counts it down twice.
        SlotFreedTwice = "slot_freed_twice",
        /// A quota admits beyond its rate.
        RateLimitIgnored = "rate_limit_ignored",
        /// Frames of one millisecond get the same id.
        FrameIdRepeated = "frame_id_repeated",
        /// A live frame puts an end to a stream with durable frames.
        DurableStreamExpires = "durable_stream_expires",
        /// A purge forgets the payload.
        PurgeIncomplete = "purge_incomplete",
    }
}

#[cfg(feature = "faults")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Switches one fault on, or all off, for the current thread.
#[cfg(feature = "faults")]
pub fn set(fault: Option<Fault>) {
    ACTIVE.set(fault);
}

/// Whether a fault is on.
#[cfg(feature = "faults")]
#[must_use]
pub fn is_on(fault: Fault) -> bool {
    ACTIVE.get() == Some(fault)
}

/// Whether a fault is on: never, in this build.
#[cfg(not(feature = "faults"))]
#[must_use]
pub const fn is_on(_fault: Fault) -> bool {
    false
}
