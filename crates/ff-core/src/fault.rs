//! Deliberate faults: small wrong changes that the simulator switches on to prove that its checks notice them.
//!
//! Without the `faults` feature every question is answered "no" at compile time.

use crate::words::words;

words! {
    /// A wrong change in a rule or an operation.
    pub enum Fault {
        /// A fence is not compared with the stored one.
        FenceNotCompared = "fence_not_compared",
        /// An expired lease counts as live.
        ExpiryIgnored = "expiry_ignored",
        /// A new owner keeps the epoch of the last one.
        EpochKept = "epoch_kept",
        /// Every claim starts the execution anew.
        StartMoves = "start_moves",
        /// A new attempt takes the index of the last one.
        AttemptIndexReused = "attempt_index_reused",
        /// A consumed grant stays.
        GrantKept = "grant_kept",
        /// The end of an execution emits no completion.
        CompletionUntold = "completion_untold",
        /// A replayed execution keeps its completion time.
        CompletionTimeKept = "completion_time_kept",
        /// A permanent failure is retried.
        PermanentRetried = "permanent_retried",
        /// Retries go on beyond the policy.
        RetriesUncounted = "retries_uncounted",
        /// A lost lease is reclaimed however often.
        ReclaimsUncapped = "reclaims_uncapped",
        /// A delay ends whenever somebody looks.
        DelayCutShort = "delay_cut_short",
        /// A resumed execution leaves its waitpoints open.
        WaitpointsLeftOpen = "waitpoints_left_open",
        /// A signal with a known key is taken again.
        SignalKeyForgotten = "signal_key_forgotten",
        /// A new edge leaves the graph revision as it was.
        RevisionKept = "revision_kept",
        /// An edge may close a cycle.
        CycleAccepted = "cycle_accepted",
        /// A skipped member does not skip what depends on it.
        SkipNotPassedOn = "skip_not_passed_on",
        /// Usage may pass a hard limit.
        HardLimitIgnored = "hard_limit_ignored",
        /// A usage report with a known key is added again.
        UsageKeyForgotten = "usage_key_forgotten",
        /// A ledger of an earlier period is released.
        LedgerOutlivesReset = "ledger_outlives_reset",
        /// Ended ownership keeps its quota slot.
        SlotKept = "slot_kept",
        /// Frames of one millisecond share an id.
        FrameIdsRepeat = "frame_ids_repeat",
        /// A summary frame leaves the version as it was.
        SummaryVersionKept = "summary_version_kept",
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
