//! An attempt has run too long.

use ff_core::backend::leases::ExpirePhase;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Execution;
use crate::store::Store;

/// Ends the attempt; the retry policy decides what follows.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, now: TimestampMs) -> Result<bool> {
    engine.expire(record.id, ExpirePhase::AttemptTimeout, now).await
}
