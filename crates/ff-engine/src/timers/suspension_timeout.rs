//! A suspension has waited too long.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Execution;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Execution, _now: TimestampMs) -> Result<()> {
    Ok(())
}
