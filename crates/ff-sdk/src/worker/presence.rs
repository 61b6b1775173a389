//! Being known: registration and leaving.

use ff_core::backend::workers::{MarkWorkerDeadArgs, RegisterWorkerArgs};
use ff_core::error::EngineError;
use tracing::warn;

use super::Shared;
use crate::task::millis;

/// Tells the registry what this worker can do; frees work that waits for it.
pub(super) async fn register(shared: &Shared) -> Result<(), EngineError> {
    let args = RegisterWorkerArgs {
        worker_id: shared.worker_id.clone(),
        worker_instance_id: shared.instance_id.clone(),
        namespace: shared.namespace.clone(),
        lanes: shared.lanes.clone(),
        capabilities: shared.capabilities.tokens.clone(),
        kinds: Some(shared.kinds()),
        liveness_ttl_ms: millis(shared.liveness_ttl),
    };
    shared.backend.register_worker(args).await.map(|_| ())
}

/// Says goodbye, so that nobody counts on this worker any more.
pub(super) async fn leave(shared: &Shared) {
    let args = MarkWorkerDeadArgs {
        worker_instance_id: shared.instance_id.clone(),
        namespace: shared.namespace.clone(),
        reason: "stopped".to_owned(),
    };
    if let Err(error) = shared.backend.mark_worker_dead(args).await {
        warn!(%error, "cannot leave the registry; the entry runs out by itself");
    }
}
