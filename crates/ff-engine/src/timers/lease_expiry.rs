//! A lease runs out.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::ops::leases::MarkExpired;
use crate::records::Execution;
use crate::store::Store;

/// Marks the lease as expired, unless it was renewed meanwhile.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, _now: TimestampMs) -> Result<()> {
    engine.run(MarkExpired { execution_id: record.id }).await
}
