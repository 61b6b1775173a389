//! What a process knows of queues without reading them, beside others that change them.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;

use std::time::{Duration, Instant};

use ff_backend_postgres::PostgresStore;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::{Attempts, Claims, Ingress, Inspection};
use ff_core::capability::CapabilitySet;
use ff_core::ids::{ExecutionId, LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::state::PublicState;
use ff_engine::{Engine, Settings};

/// Longer than a process may overlook the work of another one.
const PATIENCE: Duration = Duration::from_secs(10);

type Process = Engine<PostgresStore>;

/// Two processes on one schema.
async fn two() -> (Process, Process) {
    let options = server::options().schema(server::fresh_name().as_str()).unwrap();
    let one = PostgresStore::connect(options.clone()).await.unwrap();
    let other = PostgresStore::connect(options).await.unwrap();
    let open = |store| Engine::open(store, Settings::default());
    (open(one).await.unwrap(), open(other).await.unwrap())
}

fn lane() -> LaneId {
    LaneId::new("default").unwrap()
}

async fn create(process: &Process, priority: i32) -> ExecutionId {
    let mut args = CreateExecutionArgs::new(None, Namespace::new("acme").unwrap(), lane(), "mail");
    args.priority = priority;
    match process.create_execution(args).await.unwrap() {
        CreateExecutionResult::Created { execution_id, .. } => execution_id,
        other => panic!("{other:?}"),
    }
}

/// Takes and completes the first execution that waits; says whether there was one.
async fn take(process: &Process) -> bool {
    let policy = ClaimPolicy::new(WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap(), 30_000);
    match process.claim(&lane(), &CapabilitySet::default(), policy).await.unwrap() {
        Some(handle) => process.complete(&handle, None).await.is_ok(),
        None => false,
    }
}

async fn is_done(process: &Process, id: ExecutionId) -> bool {
    process.describe_execution(id).await.unwrap().unwrap().public_state == PublicState::Completed
}

#[tokio::test]
async fn work_of_another_process_is_found_where_this_one_knows_of_none() {
    let (one, other) = two().await;
    for _ in 0..20 {
        create(&one, 0).await;
        assert!(take(&one).await);
        assert!(!take(&one).await, "now it knows that the queue is empty");
        let theirs = create(&other, 0).await;
        assert!(take(&one).await, "who finds nothing looks for real");
        assert!(is_done(&one, theirs).await);
    }
}

#[tokio::test]
async fn work_of_another_process_is_not_overlooked_for_long_beside_own_work() {
    let (one, other) = two().await;
    create(&one, 0).await;
    assert!(take(&one).await);
    let urgent = create(&other, 9).await;
    let began = Instant::now();
    while !is_done(&other, urgent).await {
        // There is always something of its own to take.
        create(&one, 0).await;
        assert!(take(&one).await);
        assert!(began.elapsed() < PATIENCE, "it is overlooked");
    }
}

#[tokio::test]
async fn what_another_process_took_is_not_given_out_again() {
    let (one, other) = two().await;
    for _ in 0..20 {
        create(&one, 0).await;
        assert!(take(&one).await);
        let next = create(&one, 0).await;
        assert!(take(&other).await, "it is the only one");
        assert!(is_done(&one, next).await);
        assert!(!take(&one).await);
    }
}
