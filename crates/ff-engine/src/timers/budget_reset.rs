//! A budget starts a new period.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Budget;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Budget, _now: TimestampMs) -> Result<()> {
    Ok(())
}
