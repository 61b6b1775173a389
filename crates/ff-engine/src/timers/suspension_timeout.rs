//! A suspension has waited too long.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Execution;
use crate::store::Store;

/// Applies the timeout behaviour, if the suspension is still open and due.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, now: TimestampMs) -> Result<bool> {
    engine.time_out_suspension(record.id, now).await
}
