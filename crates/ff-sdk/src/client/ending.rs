//! How an execution ended without a result.

use std::fmt;

use ff_core::Blob;
use ff_core::backend::inspection::ExecutionOutcome;
use ff_core::state::PublicState;

/// How an execution ended, if not by completing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// Its last attempt failed.
    Failed {
        /// What the handler said.
        reason: String,
        /// What kind of failure.
        category: String,
    },
    /// Somebody cancelled it.
    Cancelled {
        /// What they said.
        reason: String,
    },
    /// Its time was over.
    Expired,
    /// Something it depends on did not end well.
    Skipped,
}

impl Ending {
    /// The result of what completed, else how it ended.
    pub(crate) fn of(outcome: ExecutionOutcome) -> Result<Option<Blob>, Self> {
        Err(match outcome.public_state {
            PublicState::Completed => return Ok(outcome.result),
            PublicState::Cancelled => Self::Cancelled { reason: outcome.cancellation_reason.unwrap_or_default() },
            PublicState::Expired => Self::Expired,
            PublicState::Skipped => Self::Skipped,
            _ => Self::Failed {
                reason: outcome.failure_reason.unwrap_or_default(),
                category: outcome.failure_category.unwrap_or_default(),
            },
        })
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { reason, category } => write!(f, "failed ({category}): {reason}"),
            Self::Cancelled { reason } => write!(f, "was cancelled: {reason}"),
            Self::Expired => f.write_str("expired"),
            Self::Skipped => f.write_str("was skipped because of what it depends on"),
        }
    }
}
