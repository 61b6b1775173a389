//! A pending waitpoint runs out.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Waitpoint;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Waitpoint, _now: TimestampMs) -> Result<()> {
    Ok(())
}
