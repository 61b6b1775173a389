//! What a backend is, what it can do, and whether it is there.

use std::sync::Arc;
use std::time::Duration;

use ff_core::backend::connection::{PrepareOutcome, Supports};
use ff_core::backend::streams::{Frame, FrameKind, StreamFrames, TailVisibility};
use ff_core::cursor::{FrameCursor, FrameId};
use ff_core::handle::BackendTag;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::{EngineError, Result};
use tokio::task::JoinHandle;

use crate::cases;
use crate::expect::refusal;
use crate::world::World;

cases!["connection":
    a_backend_says_what_it_is_and_claims_everything,
    preparing_twice_is_harmless,
    a_ping_reaches_the_store,
    server_time_is_the_time_of_the_store,
    a_shutdown_lets_waiting_readers_go_and_takes_no_new_ones,
    a_shutdown_without_grace_tells_that_readers_are_left,
    other_operations_work_on_after_a_shutdown_is_prepared,
];

async fn a_backend_says_what_it_is_and_claims_everything(world: World) {
    let capabilities = world.backend.capabilities();
    let label = world.backend.backend_label();
    assert_eq!(capabilities.identity.family, label);
    assert!(label.parse::<BackendTag>().is_ok(), "{label}");
    assert_eq!(capabilities.supports, Supports::ALL);
    assert_eq!(world.backend.capabilities(), capabilities);
    let _concrete = world.backend.as_any();
}

async fn preparing_twice_is_harmless(world: World) {
    let id = world.create().await;
    world.backend.prepare().await.unwrap();
    assert_eq!(world.backend.prepare().await.unwrap(), PrepareOutcome::NoOp);
    assert!(world.backend.describe_execution(id).await.unwrap().is_some());
}

async fn a_ping_reaches_the_store(world: World) {
    world.backend.ping().await.unwrap();
}

async fn server_time_is_the_time_of_the_store(world: World) {
    let before = world.backend.server_time_ms().await.unwrap();
    assert_eq!(before, u64::try_from(world.now().0).unwrap());
    world.advance(1234);
    assert_eq!(world.backend.server_time_ms().await.unwrap(), before + 1234);
}

/// A reader that waits for the first frame of an execution.
async fn waiting_reader(world: &Arc<World>, id: ExecutionId) -> JoinHandle<Result<StreamFrames>> {
    let world = Arc::clone(world);
    let tail = tokio::spawn(async move {
        let after = FrameCursor::At(FrameId::ZERO);
        world.backend.tail_stream(id, AttemptIndex(0), after, 30_000, 1, TailVisibility::All).await
    });
    tokio::task::yield_now().await;
    tail
}

async fn a_shutdown_without_grace_tells_that_readers_are_left(world: World) {
    let (id, _) = world.claim_one().await;
    let world = Arc::new(world);
    let tail = waiting_reader(&world, id).await;
    match refusal(world.backend.shutdown_prepare(Duration::ZERO).await) {
        EngineError::Timeout { op: "shutdown_prepare", elapsed: Duration::ZERO } => {}
        other => panic!("expected a timeout, got {other:?}"),
    }
    tail.await.unwrap().unwrap();
    world.backend.shutdown_prepare(Duration::ZERO).await.unwrap();
}

async fn a_shutdown_lets_waiting_readers_go_and_takes_no_new_ones(world: World) {
    let (id, _) = world.claim_one().await;
    let world = Arc::new(world);
    let tail = waiting_reader(&world, id).await;
    world.backend.shutdown_prepare(Duration::from_secs(1)).await.unwrap();
    let page = tail.await.unwrap().unwrap();
    assert!(page.frames.is_empty() && page.closed_at.is_none());
    let read = world.backend.read_stream(id, AttemptIndex(0), FrameCursor::Start, FrameCursor::End, 1).await;
    match refusal(read) {
        EngineError::ResourceExhausted { pool: "stream_ops", retry_after_ms: None, .. } => {}
        other => panic!("expected a closed pool, got {other:?}"),
    }
    world.backend.shutdown_prepare(Duration::ZERO).await.unwrap();
}

async fn other_operations_work_on_after_a_shutdown_is_prepared(world: World) {
    let (_, handle) = world.claim_one().await;
    world.backend.shutdown_prepare(Duration::ZERO).await.unwrap();
    world.backend.append_frame(&handle, Frame::new(FrameKind::Stdout, "last words")).await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
}
