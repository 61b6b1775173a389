//! Siblings of a decided group are cancelled.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::EdgeGroup;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: EdgeGroup, _now: TimestampMs) -> Result<()> {
    Ok(())
}
