//! A flow is projected.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::ProjectionMark;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: ProjectionMark, _now: TimestampMs) -> Result<()> {
    Ok(())
}
