//! A submission that the transaction of its caller has committed.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::ops::ingress::create::intake::take_in;
use crate::records::Intake;
use crate::store::Store;

/// Creates what it asks for.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, intake: Intake, _now: TimestampMs) -> Result<bool> {
    take_in(engine, intake).await
}
