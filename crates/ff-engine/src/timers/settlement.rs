//! Ended ownership is settled with the quotas that admitted it.

use ff_core::ids::ExecutionId;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Settlement;
use crate::store::Store;

/// Settles what an execution owes, as far as that succeeds right now.
#[allow(clippy::unused_async)]
pub(crate) async fn settle_now<S: Store>(_engine: &Engine<S>, _execution: ExecutionId) {}

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Settlement, _now: TimestampMs) -> Result<()> {
    Ok(())
}
