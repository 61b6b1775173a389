//! A provisional admission is confirmed or dropped.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::Admission;
use crate::store::Store;

/// (being written)
#[allow(clippy::unused_async)]
pub(crate) async fn handle<S: Store>(_engine: &Engine<S>, _record: Admission, _now: TimestampMs) -> Result<()> {
    Ok(())
}
