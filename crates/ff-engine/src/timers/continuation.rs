//! Unfinished bulk work goes on, a slice at a time.

use ff_core::{Result, TimestampMs};

use super::gates;
use crate::engine::Engine;
use crate::index::Position;
use crate::records::{Continuation, ContinuationWork};
use crate::store::Store;

/// What one slice left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Done,
    /// More, from there on, at that time.
    More {
        /// Where the slice stopped.
        after: Option<Position>,
        /// When the next one is due.
        due_at: TimestampMs,
    },
}

/// Does one slice.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Continuation, _now: TimestampMs) -> Result<()> {
    match record.work {
        ContinuationWork::OpenBudget { .. } | ContinuationWork::OpenQuota { .. } | ContinuationWork::Breach { .. } => {
            gates::advance(engine, record).await
        }
        _ => Ok(()),
    }
}
