//! A lease runs out.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::ops::leases::MarkExpired;
use crate::records::Execution;
use crate::store::Store;
use crate::timers::witness::changes;

/// Marks the lease as expired, unless it was renewed meanwhile.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, _now: TimestampMs) -> Result<bool> {
    changes(engine, Key::execution(record.id), MarkExpired { execution_id: record.id }).await
}
