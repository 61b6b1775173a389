//! A delay is over.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Execution;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Execution, _now: TimestampMs) -> Result<()> {
    Ok(())
}

/// Makes one execution claimable if its delay is over; says whether it did.
#[allow(clippy::unused_async)]
pub(crate) async fn promote<S: Store>(
    _engine: &Engine<S>,
    _id: ff_core::ids::ExecutionId,
    _now: TimestampMs,
) -> Result<bool> {
    Ok(false)
}
