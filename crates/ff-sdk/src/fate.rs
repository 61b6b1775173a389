//! What becomes of a running task: seen by its handler as a cancellation, by its driver as the end of its claim.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ff_core::backend::EngineBackend;
use ff_core::backend::leases::{AwaitLostLeasesArgs, LeaseLoss};
use ff_core::error::EngineError;
use ff_core::handle::Handle;
use ff_core::ids::WorkerInstanceId;
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
    /// The execution waits for something; the handler runs again when that is over.
    Parked,
    /// The worker stops, and the time to finish is over.
    Stopping,
}

impl Interruption {
    const fn is_loss(&self) -> bool {
        matches!(self, Self::Cancelled { .. } | Self::LeaseLost { .. })
    }
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled { reason } => write!(f, "cancelled: {reason}"),
            Self::LeaseLost { detail } => write!(f, "lease lost: {detail}"),
            Self::Parked => f.write_str("the execution waits"),
            Self::Stopping => f.write_str("the worker stops"),
        }
    }
}

impl From<&LeaseLoss> for Interruption {
    fn from(loss: &LeaseLoss) -> Self {
        let detail = match loss {
            LeaseLoss::Cancelled { reason } => return Self::Cancelled { reason: reason.clone() },
            LeaseLoss::Ended { public_state } => format!("the execution is {public_state}"),
            LeaseLoss::Expired => "the lease ran out".to_owned(),
            LeaseLoss::Revoked { reason } => format!("the lease was revoked: {reason}"),
            LeaseLoss::Superseded => "another worker has the execution".to_owned(),
            LeaseLoss::Missing => "the execution is gone".to_owned(),
        };
        Self::LeaseLost { detail }
    }
}

/// Why a call was refused that only the owner may make, in the engine's words if it can still tell.
pub(crate) async fn explain_loss(
    backend: &dyn EngineBackend,
    instance: &WorkerInstanceId,
    handle: &Handle,
    error: &EngineError,
) -> Interruption {
    let args =
        AwaitLostLeasesArgs { worker_instance_id: instance.clone(), handles: vec![handle.clone()], max_wait_ms: 0 };
    match backend.await_lost_leases(args).await.as_deref() {
        Ok([lost, ..]) => Interruption::from(&lost.loss),
        _ => Interruption::LeaseLost { detail: error.to_string() },
    }
}

/// Shared by the handler's context and the task's driver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    token: CancellationToken,
    why: OnceLock<Interruption>,
    lost: AtomicBool,
    parked: AtomicBool,
}

impl Fate {
    /// Tells the handler to stop. It hears the first reason; a loss counts whenever it comes.
    pub(crate) fn interrupt(&self, why: Interruption) {
        if why.is_loss() {
            self.0.lost.store(true, Ordering::Release);
        }
        self.0.why.get_or_init(|| why);
        self.0.token.cancel();
    }

    /// The execution waits now; this run of the handler has nothing more to say about it.
    pub(crate) fn park(&self) {
        self.0.parked.store(true, Ordering::Release);
        self.interrupt(Interruption::Parked);
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
        self.0.lost.load(Ordering::Acquire)
    }

    /// Whether the execution is this worker's to report about.
    pub(crate) fn is_ours(&self) -> bool {
        !self.is_lost() && !self.is_parked()
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.0.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_is_heard_and_a_later_loss_counts() {
        let fate = Fate::default();
        fate.interrupt(Interruption::Stopping);
        assert!(fate.token().is_cancelled() && fate.is_ours());
        fate.interrupt(Interruption::Cancelled { reason: "late".into() });
        assert_eq!(fate.interruption(), Some(&Interruption::Stopping));
        assert!(fate.is_lost());
    }

    #[test]
    fn whoever_parks_is_told_to_stop() {
        let fate = Fate::default();
        fate.park();
        assert!(fate.token().is_cancelled() && !fate.is_ours() && !fate.is_lost());
    }
}
