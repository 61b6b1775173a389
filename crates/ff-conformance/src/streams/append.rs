//! Appending.

use ff_core::Blob;
use ff_core::backend::attempts::FailureReason;
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::backend::streams::{Frame, FrameEncoding, FrameKind, FrameMode, FrameSource};
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger};
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::AttemptIndex;
use ff_core::policy::{ExecutionPolicy, RetryPolicy, StreamPolicy};
use ff_core::rules::retry::FailureClass;
use ff_core::state::StreamCloseReason;

use super::{FIRST, append, durable, live, read_all, summary_of, texts};
use crate::cases;
use crate::expect::{invalid, not_found, state};
use crate::stage::suspend;
use crate::world::{LEASE_MS, World};

cases!["streams::append":
    frames_keep_their_bytes_labels_and_order,
    an_unlabelled_frame_is_called_by_its_kind,
    frame_ids_grow_although_the_clock_steps_back,
    the_frame_count_is_that_of_all_appends_not_of_those_kept,
    a_durable_stream_keeps_exactly_the_length_of_its_policy,
    a_live_stream_keeps_its_floor,
    a_live_stream_expires_twice_its_ttl_after_the_last_frame,
    frames_that_expired_do_not_come_back,
    one_durable_frame_keeps_a_live_stream_for_good,
    a_closed_stream_is_dropped_after_the_time_its_policy_gives,
    an_oversized_frame_is_refused_before_anything_else,
    a_faulty_label_is_refused,
    a_frame_of_a_purged_execution_finds_nothing,
    a_frame_after_the_end_finds_the_stream_closed,
    a_suspended_execution_takes_no_frames_and_keeps_its_stream_open,
    a_lost_lease_cannot_append,
    a_revoked_lease_cannot_append,
    a_former_owner_cannot_append_to_the_next_attempt,
    a_faulty_patch_is_told_after_ownership,
    a_new_attempt_has_a_stream_of_its_own,
];

async fn frames_keep_their_bytes_labels_and_order(world: World) {
    let (id, handle) = world.claim_one().await;
    let bytes = [0, 159, 146, 150, 255];
    append(&world, &handle, durable("first")).await;
    let binary = Frame {
        frame_type: "token".into(),
        correlation_id: Some("turn-1".into()),
        ..Frame::new(FrameKind::Blob, &bytes[..])
    };
    let outcome = append(&world, &handle, binary).await;

    let page = read_all(&world, id, FIRST).await;
    let [first, second] = &page.frames[..] else { panic!("two frames expected, got {page:?}") };
    assert_eq!((&*first.payload, first.encoding), (&b"first"[..], FrameEncoding::Utf8));
    assert_eq!((&*second.payload, second.encoding), (&bytes[..], FrameEncoding::Binary));
    assert_eq!((second.frame_type.as_str(), second.correlation_id.as_deref()), ("token", Some("turn-1")));
    assert_eq!((second.id, second.at), (outcome.stream_id, world.now()));
    assert_eq!((second.mode, second.source, second.summary_version), (FrameMode::Durable, FrameSource::Worker, None));
    assert!(first.id < second.id);
    assert_eq!(outcome.summary_version, None);
}

async fn an_unlabelled_frame_is_called_by_its_kind(world: World) {
    let (id, handle) = world.claim_one().await;
    for kind in FrameKind::ALL {
        append(&world, &handle, Frame::new(*kind, "x")).await;
    }
    let labels: Vec<_> = read_all(&world, id, FIRST).await.frames.into_iter().map(|frame| frame.frame_type).collect();
    assert_eq!(labels, FrameKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
}

async fn frame_ids_grow_although_the_clock_steps_back(world: World) {
    let (_, handle) = world.claim_one().await;
    let start = world.now();
    let first = append(&world, &handle, durable("a")).await.stream_id;
    let second = append(&world, &handle, durable("b")).await.stream_id;
    world.set_clock(ff_core::TimestampMs(start.0 - 5000));
    let third = append(&world, &handle, durable("c")).await.stream_id;
    world.set_clock(start.plus(10));
    let fourth = append(&world, &handle, durable("d")).await.stream_id;
    assert!(first < second && second < third && third < fourth);
    assert_eq!(fourth.ms, u64::try_from(start.0).unwrap() + 10);
}

async fn the_frame_count_is_that_of_all_appends_not_of_those_kept(world: World) {
    let policy = streaming(Some(2), None);
    let (id, handle) = world.claim_one_with(&policy).await;
    for n in 1..=5 {
        assert_eq!(append(&world, &handle, durable("x")).await.frame_count, n);
    }
    assert_eq!(read_all(&world, id, FIRST).await.frames.len(), 2);
}

fn streaming(retention_maxlen: Option<u64>, retention_ttl_ms: Option<u64>) -> ExecutionPolicy {
    ExecutionPolicy {
        stream_policy: Some(StreamPolicy { retention_maxlen, retention_ttl_ms }),
        ..ExecutionPolicy::default()
    }
}

async fn a_durable_stream_keeps_exactly_the_length_of_its_policy(world: World) {
    let (id, handle) = world.claim_one_with(&streaming(Some(3), None)).await;
    for n in 0..10 {
        append(&world, &handle, durable(&n.to_string())).await;
    }
    assert_eq!(texts(&read_all(&world, id, FIRST).await), ["7", "8", "9"]);
}

async fn a_live_stream_keeps_its_floor(world: World) {
    let (id, handle) = world.claim_one().await;
    for n in 0..10 {
        append(&world, &handle, live(&n.to_string(), 1500)).await;
        world.advance(1000);
    }
    assert_eq!(texts(&read_all(&world, id, FIRST).await), ["6", "7", "8", "9"]);
}

async fn a_live_stream_expires_twice_its_ttl_after_the_last_frame(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, live("a", 1000)).await;
    world.pass(1999).await;
    append(&world, &handle, live("b", 1000)).await;
    world.pass(1999).await;
    assert_eq!(texts(&read_all(&world, id, FIRST).await), ["a", "b"]);
    world.advance(1);
    assert!(read_all(&world, id, FIRST).await.frames.is_empty(), "expired frames are not shown");
    world.run_due().await;
    assert!(read_all(&world, id, FIRST).await.frames.is_empty());
    assert_eq!(append(&world, &handle, live("c", 1000)).await.frame_count, 3);
    assert_eq!(texts(&read_all(&world, id, FIRST).await), ["c"]);
}

async fn frames_that_expired_do_not_come_back(world: World) {
    for next in [live("b", 1000), durable("b")] {
        let (id, handle) = world.claim_one().await;
        append(&world, &handle, live("a", 1000)).await;
        world.advance(2000);
        append(&world, &handle, next).await;
        assert_eq!(texts(&read_all(&world, id, FIRST).await), ["b"], "nobody has swept the stream yet");
        world.run_due().await;
        assert_eq!(texts(&read_all(&world, id, FIRST).await), ["b"]);
        world.backend.complete(&handle, None).await.unwrap();
    }
}

async fn one_durable_frame_keeps_a_live_stream_for_good(world: World) {
    for keeper in [durable("kept"), summary_of("{}")] {
        let (id, handle) = world.claim_one().await;
        append(&world, &handle, live("a", 1000)).await;
        append(&world, &handle, keeper).await;
        append(&world, &handle, live("b", 1000)).await;
        world.pass(10_000).await;
        assert_eq!(read_all(&world, id, FIRST).await.frames.len(), 3);
    }
}

async fn a_closed_stream_is_dropped_after_the_time_its_policy_gives(world: World) {
    let (id, handle) = world.claim_one_with(&streaming(None, Some(5000))).await;
    append(&world, &handle, durable("a")).await;
    world.pass(10_000).await;
    assert_eq!(read_all(&world, id, FIRST).await.frames.len(), 1, "an open stream stays");
    world.backend.complete(&handle, None).await.unwrap();
    world.pass(4999).await;
    assert_eq!(read_all(&world, id, FIRST).await.frames.len(), 1);
    world.pass(1).await;
    let page = read_all(&world, id, FIRST).await;
    assert!(page.is_end());
    assert_eq!(page.closed_reason, Some(StreamCloseReason::AttemptSuccess));
}

async fn an_oversized_frame_is_refused_before_anything_else(world: World) {
    let (_, handle) = world.claim_one().await;
    let largest = Frame::new(FrameKind::Blob, vec![0; 65_536]);
    append(&world, &handle, largest).await;
    world.backend.complete(&handle, None).await.unwrap();
    let too_large = Frame { frame_type: "\u{7}".into(), ..Frame::new(FrameKind::Blob, vec![0; 65_537]) };
    invalid(world.backend.append_frame(&handle, too_large).await, ValidationKind::RetentionLimitExceeded);
}

async fn a_faulty_label_is_refused(world: World) {
    let (id, handle) = world.claim_one().await;
    let labels = ["x".repeat(257), "line\nbreak".to_owned()];
    for label in labels {
        let labelled = Frame { frame_type: label.clone(), ..durable("x") };
        invalid(world.backend.append_frame(&handle, labelled).await, ValidationKind::InvalidInput);
        let correlated = Frame { correlation_id: Some(label), ..durable("x") };
        invalid(world.backend.append_frame(&handle, correlated).await, ValidationKind::InvalidInput);
    }
    assert!(read_all(&world, id, FIRST).await.frames.is_empty());
}

async fn a_frame_of_a_purged_execution_finds_nothing(world: World) {
    let policy = ExecutionPolicy { retention_ms: Some(1000), ..ExecutionPolicy::default() };
    let (_, handle) = world.claim_one_with(&policy).await;
    world.backend.complete(&handle, None).await.unwrap();
    world.pass(1000).await;
    not_found(world.backend.append_frame(&handle, durable("late")).await, Entity::Execution);
}

async fn a_frame_after_the_end_finds_the_stream_closed(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, durable("a")).await;
    world.backend.complete(&handle, Some(Blob::from("done"))).await.unwrap();
    state(world.backend.append_frame(&handle, durable("late")).await, StateKind::StreamClosed);
    let page = read_all(&world, id, FIRST).await;
    assert_eq!(texts(&page), ["a"]);
    assert_eq!((page.closed_at, page.closed_reason), (Some(world.now()), Some(StreamCloseReason::AttemptSuccess)));
}

async fn a_suspended_execution_takes_no_frames_and_keeps_its_stream_open(world: World) {
    let (id, handle) = world.claim_one().await;
    append(&world, &handle, durable("before")).await;
    suspend(&world, &handle).await;
    state(world.backend.append_frame(&handle, durable("during")).await, StateKind::StreamClosed);
    assert_eq!(read_all(&world, id, FIRST).await.closed_reason, None);
    world.backend.resume_execution(ResumeExecutionArgs::new(id, ResumeTrigger::Operator)).await.unwrap();
    let resumed = world.claim().await.expect("the same attempt goes on");
    append(&world, &resumed, durable("after")).await;
    assert_eq!(texts(&read_all(&world, id, FIRST).await), ["before", "after"]);
}

async fn a_lost_lease_cannot_append(world: World) {
    let (id, handle) = world.claim_one().await;
    world.advance(LEASE_MS);
    state(world.backend.append_frame(&handle, durable("late")).await, StateKind::StaleOwnerCannotAppend);
    world.run_due().await;
    state(world.backend.append_frame(&handle, durable("late")).await, StateKind::StaleOwnerCannotAppend);
    let page = read_all(&world, id, FIRST).await;
    assert_eq!((page.frames.len(), page.closed_reason), (0, Some(StreamCloseReason::LeaseExpired)));
}

async fn a_revoked_lease_cannot_append(world: World) {
    let (id, handle) = world.claim_one().await;
    let revoke = RevokeLeaseArgs {
        execution_id: id,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "maintenance".into(),
    };
    world.backend.revoke_lease(revoke).await.unwrap();
    state(world.backend.append_frame(&handle, durable("late")).await, StateKind::StaleOwnerCannotAppend);
    assert_eq!(read_all(&world, id, FIRST).await.closed_reason, Some(StreamCloseReason::LeaseRevoked));
}

async fn a_former_owner_cannot_append_to_the_next_attempt(world: World) {
    let (id, first) = world.claim_one().await;
    append(&world, &first, durable("mine")).await;
    world.pass(LEASE_MS).await;
    let second = world.claim_as("worker-b", LEASE_MS).await.unwrap().expect("an expired lease is claimable");
    state(world.backend.append_frame(&first, durable("late")).await, StateKind::StaleOwnerCannotAppend);
    append(&world, &second, durable("theirs")).await;
    let lost = read_all(&world, id, FIRST).await;
    assert_eq!((texts(&lost), lost.closed_reason), (vec!["mine".to_owned()], Some(StreamCloseReason::Reclaimed)));
    assert_eq!(texts(&read_all(&world, id, AttemptIndex(1)).await), ["theirs"]);
}

async fn a_faulty_patch_is_told_after_ownership(world: World) {
    let (id, handle) = world.claim_one().await;
    invalid(world.backend.append_frame(&handle, summary_of("nonsense")).await, ValidationKind::InvalidInput);
    assert!(read_all(&world, id, FIRST).await.frames.is_empty());
    world.backend.complete(&handle, None).await.unwrap();
    state(world.backend.append_frame(&handle, summary_of("nonsense")).await, StateKind::StreamClosed);
}

async fn a_new_attempt_has_a_stream_of_its_own(world: World) {
    let policy = ExecutionPolicy { retry_policy: Some(RetryPolicy::default()), ..ExecutionPolicy::default() };
    let (id, handle) = world.claim_one_with(&policy).await;
    append(&world, &handle, durable("one")).await;
    world.backend.fail(&handle, FailureReason::new("again"), FailureClass::Transient).await.unwrap();
    world.pass(60_000).await;
    let retry = world.claim().await.expect("the retry is due");
    assert_eq!(append(&world, &retry, durable("two")).await.frame_count, 1);
    assert_eq!(read_all(&world, id, FIRST).await.closed_reason, Some(StreamCloseReason::AttemptFailure));
    let second = read_all(&world, id, AttemptIndex(1)).await;
    assert_eq!((texts(&second), second.closed_reason), (vec!["two".to_owned()], None));
}
