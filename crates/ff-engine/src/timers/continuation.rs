//! Unfinished bulk work goes on, a slice at a time.

use ff_core::{Result, TimestampMs};

use super::{gates, routes};
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

/// Hands a continuation to those who know its work.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Continuation, now: TimestampMs) -> Result<()> {
    match &record.work {
        ContinuationWork::OpenRoute { .. } => routes::handle(engine, record, now).await,
        ContinuationWork::Breach { .. } | ContinuationWork::OpenBudget { .. } | ContinuationWork::OpenQuota { .. } => {
            gates::advance(engine, record).await
        }
        ContinuationWork::CancelMembers { .. } | ContinuationWork::ResolveEdges { .. } => Ok(()),
    }
}
