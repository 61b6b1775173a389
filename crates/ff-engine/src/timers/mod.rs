//! Work that comes due: one file per kind, and the deterministic pass over all of them.

pub(crate) mod admission_expiry;
pub(crate) mod attempt_timeout;
pub(crate) mod budget_reset;
pub(crate) mod continuation;
pub(crate) mod deadline;
pub(crate) mod delay;
pub(crate) mod gates;
pub(crate) mod lease_expiry;
pub(crate) mod reclaim_backoff;
pub(crate) mod settlement;

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::store::Store;

/// What one pass over due work did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueReport {
    /// Items handled.
    pub handled: usize,
    /// Items that failed and will be tried again.
    pub failed: usize,
}

/// Items that failed repeatedly and are left alone for a while.
#[derive(Debug, Default)]
pub(crate) struct Poison {}

impl<S: Store> Engine<S> {
    /// Handles work that is due at `now` (or at the store's time, if that is earlier), at most `limit` items.
    ///
    /// # Errors
    /// Only when due work cannot be listed; a failing item is counted, not propagated.
    pub async fn run_due(&self, _now: TimestampMs, _limit: usize) -> Result<DueReport> {
        Ok(DueReport::default())
    }
}
