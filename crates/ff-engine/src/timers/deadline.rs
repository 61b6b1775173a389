//! An execution has lived too long.

use ff_core::backend::leases::ExpirePhase;
use ff_core::fault::{Fault, is_on};
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Execution;
use crate::store::Store;

/// Ends the execution, whatever it does.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, now: TimestampMs) -> Result<bool> {
    if is_on(Fault::DeadlineIgnored) {
        return Ok(false);
    }
    engine.expire(record.id, ExpirePhase::ExecutionDeadline, now).await
}
