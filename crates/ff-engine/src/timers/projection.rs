//! A flow whose members changed is projected.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::ops::flows::projection::project;
use crate::records::ProjectionMark;
use crate::store::Store;

/// Projects the flow and answers the mark.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: ProjectionMark, _now: TimestampMs) -> Result<()> {
    project(engine, record.flow, Some(record)).await.map(drop)
}
