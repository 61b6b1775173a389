//! A flow whose members changed is projected.

use ff_core::fault::{Fault, is_on};
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::ops::flows::projection::answer;
use crate::records::ProjectionMark;
use crate::store::Store;

/// Projects the flow and answers the mark.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: ProjectionMark, _now: TimestampMs) -> Result<bool> {
    if is_on(Fault::ProjectionForgotten) {
        return Ok(false);
    }
    answer(engine, record).await
}
