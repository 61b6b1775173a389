//! Reading and tailing.

use std::sync::Arc;

use ff_core::EngineError;
use ff_core::backend::streams::{StreamFrames, TailVisibility};
use ff_core::cursor::{FrameCursor, FrameId};
use ff_core::error::ValidationKind;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::state::StreamCloseReason;

use super::{FIRST, append, durable, live, read_all, texts};
use crate::cases;
use crate::expect::{invalid, refusal};
use crate::world::World;

cases!["streams::read":
    an_unknown_stream_is_empty_and_open,
    a_range_includes_both_ends,
    a_whole_millisecond_covers_its_frames,
    a_count_outside_its_limits_is_refused,
    a_tail_shows_only_what_comes_after,
    a_peek_does_not_wait,
    a_tail_wakes_when_a_frame_comes,
    a_tail_wakes_when_the_stream_closes,
    a_tail_that_waits_in_vain_says_that_the_stream_is_open,
    hidden_frames_do_not_count,
    a_tail_needs_a_concrete_position_and_sensible_numbers,
    readers_beyond_the_pool_are_sent_away,
];

async fn tail(world: &World, id: ExecutionId, after: FrameId, block_ms: u64) -> StreamFrames {
    let after = FrameCursor::At(after);
    world.backend.tail_stream(id, FIRST, after, block_ms, 100, TailVisibility::All).await.unwrap()
}

async fn an_unknown_stream_is_empty_and_open(world: World) {
    let (id, handle) = world.claim_one().await;
    assert_eq!(read_all(&world, world.execution_id(), FIRST).await, StreamFrames::default());
    assert_eq!(read_all(&world, id, AttemptIndex(7)).await, StreamFrames::default());
    assert_eq!(read_all(&world, ExecutionId::new(60_000, world.uuid()), FIRST).await, StreamFrames::default());
    assert_eq!(read_all(&world, id, FIRST).await, StreamFrames::default());
    append(&world, &handle, durable("x")).await;
    assert_eq!(read_all(&world, id, FIRST).await.closed_at, None);
}

async fn a_range_includes_both_ends(world: World) {
    let (id, handle) = world.claim_one().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(append(&world, &handle, durable(&n.to_string())).await.stream_id);
        world.advance(u64::from(n == 2));
    }
    let read = async |from, to, count| texts(&world.backend.read_stream(id, FIRST, from, to, count).await.unwrap());
    let (second, fourth) = (FrameCursor::At(ids[1]), FrameCursor::At(ids[3]));
    assert_eq!(read(second, fourth, 10).await, ["1", "2", "3"]);
    assert_eq!(read(second, FrameCursor::End, 2).await, ["1", "2"]);
    assert_eq!(read(FrameCursor::Start, fourth, 10).await, ["0", "1", "2", "3"]);
    assert!(read(fourth, second, 10).await.is_empty());
    assert!(read(FrameCursor::End, FrameCursor::End, 10).await.is_empty());
    assert!(read(FrameCursor::Start, FrameCursor::Start, 10).await.is_empty());
}

async fn a_whole_millisecond_covers_its_frames(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, durable("before")).await;
    world.advance(5);
    let at = append(&world, &handle, durable("a")).await.stream_id.ms;
    append(&world, &handle, durable("b")).await;
    world.advance(5);
    append(&world, &handle, durable("after")).await;
    let whole = FrameCursor::Millisecond(at);
    let page = world.backend.read_stream(id, FIRST, whole, whole, 10).await.unwrap();
    assert_eq!(texts(&page), ["a", "b"]);
}

async fn a_count_outside_its_limits_is_refused(world: World) {
    let id = world.create().await;
    for count in [0, 10_001, u64::MAX] {
        let read = world.backend.read_stream(id, FIRST, FrameCursor::Start, FrameCursor::End, count).await;
        invalid(read, ValidationKind::InvalidInput);
    }
}

async fn a_tail_shows_only_what_comes_after(world: World) {
    let (id, handle) = world.claim_one().await;
    let first = append(&world, &handle, durable("a")).await.stream_id;
    append(&world, &handle, durable("b")).await;
    assert_eq!(texts(&tail(&world, id, FrameId::ZERO, 0).await), ["a", "b"]);
    assert_eq!(texts(&tail(&world, id, first, 0).await), ["b"]);
}

async fn a_peek_does_not_wait(world: World) {
    let (id, handle) = world.claim_one().await;
    let last = append(&world, &handle, durable("a")).await.stream_id;
    assert_eq!(tail(&world, id, last, 0).await, StreamFrames::default());
}

async fn a_tail_wakes_when_a_frame_comes(world: World) {
    let (id, handle) = world.claim_one().await;
    let last = append(&world, &handle, durable("a")).await.stream_id;
    let (page, _) = tokio::join!(tail(&world, id, last, 30_000), async {
        tokio::task::yield_now().await;
        append(&world, &handle, durable("b")).await
    });
    assert_eq!(texts(&page), ["b"]);
}

async fn a_tail_wakes_when_the_stream_closes(world: World) {
    let (id, handle) = world.claim_one().await;
    let last = append(&world, &handle, durable("a")).await.stream_id;
    let (page, completed) = tokio::join!(tail(&world, id, last, 30_000), async {
        tokio::task::yield_now().await;
        world.backend.complete(&handle, None).await
    });
    completed.unwrap();
    assert!(page.is_end());
    assert_eq!(page.closed_reason, Some(StreamCloseReason::AttemptSuccess));
    assert!(tail(&world, id, last, 30_000).await.is_end(), "a closed stream does not make anybody wait");
}

async fn a_tail_that_waits_in_vain_says_that_the_stream_is_open(world: World) {
    let (id, handle) = world.claim_one().await;
    let last = append(&world, &handle, durable("a")).await.stream_id;
    let (page, ()) = tokio::join!(tail(&world, id, last, 1000), async {
        tokio::task::yield_now().await;
        world.advance(1000);
    });
    assert_eq!(page, StreamFrames::default());
}

async fn hidden_frames_do_not_count(world: World) {
    let (id, handle) = world.claim_one().await;
    for n in 0..3 {
        append(&world, &handle, live(&format!("live {n}"), 60_000)).await;
    }
    append(&world, &handle, durable("kept")).await;
    let tail = |block_ms, count, visibility| {
        world.backend.tail_stream(id, FIRST, FrameCursor::At(FrameId::ZERO), block_ms, count, visibility)
    };
    let shown = tail(0, 1, TailVisibility::ExcludeBestEffort).await.unwrap();
    assert_eq!(texts(&shown), ["kept"]);
    let all = tail(0, 1, TailVisibility::All).await.unwrap();
    assert_eq!(texts(&all), ["live 0"]);

    let (page, ()) = tokio::join!(
        world.backend.tail_stream(
            id,
            FIRST,
            FrameCursor::At(shown.frames[0].id),
            1000,
            10,
            TailVisibility::ExcludeBestEffort
        ),
        async {
            tokio::task::yield_now().await;
            append(&world, &handle, live("hidden", 60_000)).await;
            tokio::task::yield_now().await;
            world.advance(1000);
        }
    );
    assert_eq!(page.unwrap(), StreamFrames::default());
}

async fn a_tail_needs_a_concrete_position_and_sensible_numbers(world: World) {
    let id = world.create().await;
    let concrete = FrameCursor::At(FrameId::ZERO);
    let faulty = [
        (FrameCursor::Start, 0, 1),
        (FrameCursor::End, 0, 1),
        (concrete, 0, 0),
        (concrete, 0, 10_001),
        (concrete, 30_001, 1),
    ];
    for (after, block_ms, count) in faulty {
        let answer = world.backend.tail_stream(id, FIRST, after, block_ms, count, TailVisibility::All).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
}

async fn readers_beyond_the_pool_are_sent_away(world: World) {
    let (id, handle) = world.claim_one().await;
    let world = Arc::new(world);
    let tails: Vec<_> = (0..64)
        .map(|_| {
            let world = Arc::clone(&world);
            tokio::spawn(async move { tail(&world, id, FrameId::ZERO, 30_000).await })
        })
        .collect();
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    let after = FrameCursor::At(FrameId::ZERO);
    let refused = [
        refusal(world.backend.read_stream(id, FIRST, FrameCursor::Start, FrameCursor::End, 1).await),
        refusal(world.backend.tail_stream(id, FIRST, after, 0, 1, TailVisibility::All).await),
    ];
    for error in refused {
        match error {
            EngineError::ResourceExhausted { pool: "stream_ops", max: 64, retry_after_ms: Some(_) } => {}
            other => panic!("expected an exhausted pool, got {other:?}"),
        }
    }
    append(&world, &handle, durable("x")).await;
    for tail in tails {
        assert_eq!(texts(&tail.await.unwrap()), ["x"]);
    }
    assert_eq!(texts(&read_all(&world, id, FIRST).await), ["x"]);
}
