//! What becomes of a running task: seen by its handler as a cancellation, by its driver as the end of its claim.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Why a handler should stop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interruption {
    /// Somebody cancelled the execution.
    Cancelled {
        /// What they said.
        reason: String,
    },
    /// The execution is no longer this worker's: its lease ran out, was revoked or went to another worker, or it ended otherwise.
    LeaseLost {
        /// How it was noticed.
        detail: String,
    },
    /// The worker stops, and the time to finish is over.
    Stopping,
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled { reason } => write!(f, "cancelled: {reason}"),
            Self::LeaseLost { detail } => write!(f, "lease lost: {detail}"),
            Self::Stopping => f.write_str("the worker stops"),
        }
    }
}

/// Shared by the handler's context and the task's driver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    token: CancellationToken,
    why: OnceLock<Interruption>,
    parked: AtomicBool,
}

impl Fate {
    /// Tells the handler to stop. The first reason stays.
    pub(crate) fn interrupt(&self, why: Interruption) {
        self.0.why.get_or_init(|| why);
        self.0.token.cancel();
    }

    /// The execution waits now; this handler has nothing more to say about it.
    pub(crate) fn park(&self) {
        self.0.parked.store(true, Ordering::Release);
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.0.parked.load(Ordering::Acquire)
    }

    /// Why it should stop, if it should.
    pub(crate) fn interruption(&self) -> Option<&Interruption> {
        self.0.why.get()
    }

    /// Whether the execution belongs to somebody else, or to nobody.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.interruption(), Some(Interruption::Cancelled { .. } | Interruption::LeaseLost { .. }))
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.0.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays_and_stopping_is_no_loss() {
        let fate = Fate::default();
        fate.interrupt(Interruption::Stopping);
        assert!(fate.token().is_cancelled() && !fate.is_lost());
        fate.interrupt(Interruption::Cancelled { reason: "late".into() });
        assert_eq!(fate.interruption(), Some(&Interruption::Stopping));
    }
}
