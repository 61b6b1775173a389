//! A grant runs out.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Grant;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Grant, _now: TimestampMs) -> Result<()> {
    Ok(())
}
