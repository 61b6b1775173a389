//! Unfinished bulk work goes on, a slice at a time.

use ff_core::TimestampMs;

use crate::index::Position;

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
