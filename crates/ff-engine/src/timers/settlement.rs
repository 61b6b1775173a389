//! An ended ownership is settled.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Settlement;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Settlement, _now: TimestampMs) -> Result<()> {
    Ok(())
}

/// Settles one ended ownership right after its commit.
#[allow(clippy::unused_async, dead_code)]
pub(crate) async fn settle_now<S: Store>(
    _engine: &Engine<S>,
    _execution: ff_core::ids::ExecutionId,
    _epoch: ff_core::ids::LeaseEpoch,
) -> Result<()> {
    Ok(())
}
