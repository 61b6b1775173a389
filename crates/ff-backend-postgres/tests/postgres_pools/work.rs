//! A little work for an engine.

use std::time::Duration;

use ff_backend_postgres::PostgresBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::{Claims, Ingress};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, LaneId, Namespace, WorkerId, WorkerInstanceId};

/// Longer than anything here takes, and shorter than the pause after which everybody looks in any case.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn patience_ms() -> u64 {
    u64::try_from(PATIENCE.as_millis()).unwrap()
}

fn lane() -> LaneId {
    LaneId::new("work").unwrap()
}

pub(crate) async fn create(engine: &PostgresBackend) -> ExecutionId {
    let args = CreateExecutionArgs::new(None, Namespace::new("work").unwrap(), lane(), "work");
    match engine.create_execution(args).await.unwrap() {
        CreateExecutionResult::Created { execution_id, .. } => execution_id,
        other => panic!("{other:?}"),
    }
}

/// Waits for work.
pub(crate) async fn claim(engine: &PostgresBackend, number: usize) -> Handle {
    let instance = WorkerInstanceId::new(format!("worker-{number}")).unwrap();
    let policy = ClaimPolicy::new(WorkerId::new("worker").unwrap(), instance, 60_000);
    let policy = ClaimPolicy { max_wait_ms: Some(patience_ms()), ..policy };
    engine.claim(&lane(), &CapabilitySet::default(), policy).await.unwrap().expect("there is work")
}
