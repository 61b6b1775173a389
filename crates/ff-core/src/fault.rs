//! Deliberate faults: small wrong changes that the simulator switches on to prove that its checks notice them.
//!
//! Without the `faults` feature every question is answered "no" at compile time.

use crate::words::words;

words! {
    /// A wrong change in a rule or an operation.
    pub enum Fault {
        /// A fence is not compared with the stored one.
        FenceNotCompared = "fence_not_compared",
        /// An expired lease can be renewed.
        ExpiredLeaseRenewed = "expired_lease_renewed",
        /// The epoch stays the same on a resumed claim.
        EpochNotRaised = "epoch_not_raised",
        /// A terminal transition emits no completion.
        CompletionNotEmitted = "completion_not_emitted",
        /// A permanent failure is retried.
        PermanentRetried = "permanent_retried",
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
