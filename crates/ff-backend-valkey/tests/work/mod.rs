//! Work that is submitted, taken and done.

use ff_backend_valkey::ValkeyBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::{Attempts, Claims, Ingress};
use ff_core::capability::CapabilitySet;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};

fn lane() -> LaneId {
    LaneId::new("default").unwrap()
}

/// Submits one execution.
pub(crate) async fn create(engine: &ValkeyBackend) {
    let args = CreateExecutionArgs::new(None, Namespace::new("acme").unwrap(), lane(), "mail");
    engine.create_execution(args).await.unwrap();
}

/// Takes and completes the first execution that waits; says whether there was one.
pub(crate) async fn take(engine: &ValkeyBackend) -> bool {
    let policy = ClaimPolicy::new(WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap(), 30_000);
    match engine.claim(&lane(), &CapabilitySet::default(), policy).await.unwrap() {
        Some(handle) => engine.complete(&handle, None).await.is_ok(),
        None => false,
    }
}
