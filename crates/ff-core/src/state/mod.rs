//! The state of an execution: six stored dimensions and the public label derived from them.

mod dimensions;
mod vector;

pub use dimensions::{
    AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState, TerminalOutcome,
};
pub use vector::StateVector;

use crate::words::words;

words! {
    /// The life of one attempt.
    pub enum AttemptLifecycle {
        /// A worker runs it.
        Started = "started",
        /// Parked: suspended, delayed or waiting for children.
        Suspended = "suspended",
        /// Completed.
        EndedSuccess = "ended_success",
        /// Failed or timed out.
        EndedFailure = "ended_failure",
        /// Cancelled, or its dependencies became impossible.
        EndedCancelled = "ended_cancelled",
        /// Its lease was lost and another attempt took over.
        InterruptedReclaimed = "interrupted_reclaimed",
    }
}

impl AttemptLifecycle {
    /// Whether the attempt is over for good.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        !matches!(self, Self::Started | Self::Suspended)
    }
}

words! {
    /// Why an attempt was created.
    pub enum AttemptType {
        /// The first one.
        Initial = "initial",
        /// After a failure.
        Retry = "retry",
        /// After a lost lease.
        Reclaim = "reclaim",
        /// After an operator re-opened a terminal execution.
        Replay = "replay",
    }
}

words! {
    /// What a lane does with work.
    pub enum LaneState {
        /// Accepts and hands out.
        Active = "active",
        /// Accepts, hands out nothing.
        Paused = "paused",
        /// Accepts nothing, hands out what is there.
        Draining = "draining",
        /// Neither.
        Disabled = "disabled",
    }
}

impl LaneState {
    /// Whether new executions may enter.
    #[must_use]
    pub const fn accepts(self) -> bool {
        matches!(self, Self::Active | Self::Paused)
    }

    /// Whether workers may claim.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Active | Self::Draining)
    }
}

words! {
    /// The state of a flow. `open` and `cancelled` are authoritative; the others are projected from its members.
    pub enum FlowState {
        /// Takes members and edges; nothing is running.
        Open = "open",
        /// A member is active.
        Running = "running",
        /// No member is active, some wait for something.
        Blocked = "blocked",
        /// Cancelled; takes no members, edges or applications.
        Cancelled = "cancelled",
        /// All members ended well.
        Completed = "completed",
        /// All members ended, one of them badly.
        Failed = "failed",
    }
}

words! {
    /// The life of a waitpoint.
    pub enum WaitpointState {
        /// Token issued, no suspension yet: signals are buffered.
        Pending = "pending",
        /// Bound to a suspension.
        Active = "active",
        /// Takes nothing any more.
        Closed = "closed",
        /// Ran out before a suspension used it.
        Expired = "expired",
    }
}

impl WaitpointState {
    /// Whether signals may still arrive.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Active)
    }
}

words! {
    /// Why a suspension or a waitpoint closed.
    pub enum CloseReason {
        /// The condition was met, or an operator resumed.
        Resumed = "resumed",
        /// The execution was cancelled.
        Cancelled = "cancelled",
        /// The timeout failed the execution.
        TimedOutFail = "timed_out_fail",
        /// The timeout cancelled it.
        TimedOutCancel = "timed_out_cancel",
        /// The timeout expired it.
        TimedOutExpire = "timed_out_expire",
        /// The timeout resumed it with a synthetic signal.
        TimedOutAutoResume = "timed_out_auto_resume",
        /// A pending waitpoint that no suspension used.
        NeverCommitted = "never_committed",
        /// The execution passed its deadline.
        Expired = "expired",
        /// The execution was skipped.
        DependencyImpossible = "dependency_impossible",
    }
}

words! {
    /// The state of a group of inbound edges.
    pub enum EdgeGroupState {
        /// Undecided.
        Pending = "pending",
        /// Enough upstreams succeeded.
        Satisfied = "satisfied",
        /// Enough upstreams can no longer succeed.
        Impossible = "impossible",
    }
}

words! {
    /// How far one dependency edge has come.
    pub enum EdgeState {
        /// Part of the graph, not yet in force for its downstream.
        Staged = "staged",
        /// In force, upstream not terminal.
        Unsatisfied = "unsatisfied",
        /// Upstream ended as wanted.
        Satisfied = "satisfied",
        /// Upstream ended otherwise.
        Impossible = "impossible",
    }
}

words! {
    /// Why a stream closed.
    pub enum StreamCloseReason {
        /// The attempt completed.
        AttemptSuccess = "attempt_success",
        /// The attempt failed.
        AttemptFailure = "attempt_failure",
        /// The attempt was cancelled.
        AttemptCancelled = "attempt_cancelled",
        /// A deadline passed.
        Expired = "expired",
        /// Another attempt took over.
        Reclaimed = "reclaimed",
        /// The lease ran out.
        LeaseExpired = "lease_expired",
        /// The lease was revoked.
        LeaseRevoked = "lease_revoked",
        /// The suspension timed out for good.
        SuspensionTimeout = "suspension_timeout",
        /// The execution was skipped.
        DependencyImpossible = "dependency_impossible",
    }
}
