//! Feeds of what happened.

use std::time::Duration;

use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs};
use ff_core::backend::inspection::TagPair;
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::backend::signals::{DeliverSignalArgs, DeliverSignalResult};
use ff_core::backend::subscriptions::{
    CompletionOutcome, InstanceTagChange, LeaseChange, ReleaseReason, ReplayType, RevokedBy, ScannerFilter,
    SignalDeliveryEffect, Subscription,
};
use ff_core::cursor::EventCursor;
use ff_core::error::ValidationKind;
use ff_core::ids::{AttemptIndex, Namespace};
use ff_core::{EngineError, TimestampMs};
use futures_util::StreamExt;
use serde_json::json;

use crate::cases;
use crate::stage::{args, chain, suspend};
use crate::world::{LEASE_MS, World};

cases!["subscriptions":
    a_feed_starts_at_the_tail_of_its_subscription,
    the_life_of_a_lease_is_told,
    lost_and_revoked_leases_are_told,
    every_end_is_told_once,
    members_tell_their_flow,
    a_delivered_signal_is_told_with_its_effect,
    tags_are_told_as_they_are_set,
    a_feed_can_be_narrowed_to_a_namespace,
    a_feed_can_be_narrowed_to_a_tag_pair,
    a_cursor_resumes_strictly_after_its_event,
    a_cursor_of_one_feed_resumes_another,
    a_feed_covers_every_partition,
    a_waiting_feed_wakes_on_the_next_event,
    a_foreign_or_truncated_cursor_is_refused_at_once,
    a_cursor_whose_events_were_trimmed_is_expired,
    a_shutdown_ends_every_feed_and_tells_where_to_go_on,
];

/// Longer than any store takes; only a failing test waits so long.
const SOON: Duration = Duration::from_secs(30);

/// Long enough for a store to tell what it has to tell. Too short would hide a fault, never report one.
const A_MOMENT: Duration = Duration::from_millis(50);

/// The next event, which must be there or come soon.
async fn next<T>(feed: &mut Subscription<T>) -> T {
    let item = tokio::time::timeout(SOON, feed.next()).await.expect("no event came");
    item.expect("the feed goes on").expect("the feed is connected")
}

/// Fails if an event is there.
async fn assert_silent<T: std::fmt::Debug>(feed: &mut Subscription<T>) {
    let item = tokio::time::timeout(A_MOMENT, feed.next()).await;
    assert!(item.is_err(), "unexpected {item:?}");
}

fn everything() -> ScannerFilter {
    ScannerFilter::default()
}

async fn a_feed_starts_at_the_tail_of_its_subscription(world: World) {
    let (_, before) = world.claim_one().await;
    world.backend.complete(&before, None).await.unwrap();
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    let event = next(&mut feed).await;
    assert_eq!((event.execution_id, event.outcome), (id, CompletionOutcome::Success));
    assert_eq!((event.at, event.flow_id), (world.now(), None));
    assert_silent(&mut feed).await;
}

async fn the_life_of_a_lease_is_told(world: World) {
    let mut feed = world.backend.subscribe_lease_history(EventCursor::TAIL, &everything()).await.unwrap();
    let (id, handle) = world.claim_one().await;
    let acquired = next(&mut feed).await;
    assert_eq!((acquired.execution_id, acquired.at), (id, world.now()));
    let LeaseChange::Acquired { lease_id, lease_epoch, attempt_index, worker_instance_id } = acquired.change else {
        panic!("expected an acquisition, got {acquired:?}")
    };
    assert_eq!((lease_epoch.0, attempt_index, &worker_instance_id), (1, AttemptIndex(0), &world.worker().1));
    world.advance(10);
    world.backend.renew(&handle).await.unwrap();
    let expires_at = world.now().plus(LEASE_MS);
    let renewed = LeaseChange::Renewed { lease_id, lease_epoch, worker_instance_id, expires_at };
    assert_eq!(next(&mut feed).await.change, renewed);
    world.backend.complete(&handle, None).await.unwrap();
    let released = LeaseChange::Released { lease_id, lease_epoch, reason: ReleaseReason::Completed };
    assert_eq!(next(&mut feed).await.change, released);
    let replay = ReplayExecutionArgs { execution_id: id, reason: String::new(), requested_by: String::new() };
    world.backend.replay_execution(replay).await.unwrap();
    let replayed = LeaseChange::ReplayInitiated { replay_type: ReplayType::Normal };
    assert_eq!(next(&mut feed).await.change, replayed);
    assert_silent(&mut feed).await;
}

async fn lost_and_revoked_leases_are_told(world: World) {
    let mut feed = world.backend.subscribe_lease_history(EventCursor::TAIL, &everything()).await.unwrap();
    let (id, _) = world.claim_one().await;
    next(&mut feed).await;
    world.pass(LEASE_MS).await;
    let expired = next(&mut feed).await.change;
    assert!(
        matches!(&expired, LeaseChange::Expired { prev_owner, .. } if *prev_owner == world.worker().1),
        "{expired:?}"
    );
    world.claim_as("worker-b", LEASE_MS).await.unwrap().expect("reclaimable");
    match next(&mut feed).await.change {
        LeaseChange::Reclaimed { prev_lease_epoch, new_lease_epoch, attempt_index, new_owner, .. } => {
            assert_eq!((prev_lease_epoch.0, new_lease_epoch.0, attempt_index), (1, 2, AttemptIndex(1)));
            assert_eq!(new_owner.as_str(), "worker-b-1");
        }
        other => panic!("expected a reclaim, got {other:?}"),
    }
    let revoke: RevokeLeaseArgs = args(json!({"execution_id": id, "reason": "maintenance"}));
    world.backend.revoke_lease(revoke).await.unwrap();
    match next(&mut feed).await.change {
        LeaseChange::Revoked { prev_owner, revoked_by, reason, .. } => {
            assert_eq!((prev_owner.as_str(), revoked_by), ("worker-b-1", RevokedBy::Operator));
            assert_eq!(reason, "maintenance");
        }
        other => panic!("expected a revocation, got {other:?}"),
    }
}

async fn every_end_is_told_once(world: World) {
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    let (_, done) = world.claim_one().await;
    world.backend.complete(&done, None).await.unwrap();
    world.backend.complete(&done, None).await.unwrap();
    let (_, failed) = world.claim_one().await;
    let reason = ff_core::backend::attempts::FailureReason::new("broken");
    world.backend.fail(&failed, reason, ff_core::rules::retry::FailureClass::Permanent).await.unwrap();
    let cancelled = world.create().await;
    let cancel = json!({"execution_id": cancelled, "reason": "no", "source": "operator_override"});
    world.backend.cancel_execution(args(cancel)).await.unwrap();
    let late = CreateExecutionArgs { execution_deadline_at: Some(world.now().plus(5)), ..world.submission() };
    world.submit(late).await;
    world.pass(5).await;
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(next(&mut feed).await.outcome);
    }
    use CompletionOutcome::{Cancelled, Expired, Failed, Success};
    assert_eq!(told, [Success, Failed, Cancelled, Expired]);
    assert_silent(&mut feed).await;
}

async fn members_tell_their_flow(world: World) {
    let (flow, members) = chain(&world, 2).await;
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    let handle = world.claim().await.expect("the first member is claimable");
    world.backend.cancel(&handle, "enough").await.unwrap();
    world.run_due().await;
    let first = next(&mut feed).await;
    assert_eq!(
        (first.execution_id, first.flow_id, first.outcome),
        (members[0], Some(flow), CompletionOutcome::Cancelled)
    );
    let second = next(&mut feed).await;
    assert_eq!(
        (second.execution_id, second.flow_id, second.outcome),
        (members[1], Some(flow), CompletionOutcome::Skipped)
    );
}

async fn a_delivered_signal_is_told_with_its_effect(world: World) {
    let mut feed = world.backend.subscribe_signal_delivery(EventCursor::TAIL, &everything()).await.unwrap();
    let (id, handle) = world.claim_one().await;
    let details = suspend(&world, &handle).await.details().clone();
    let signal: DeliverSignalArgs = args(json!({
        "execution_id": id, "waitpoint_id": details.waitpoint_id, "signal_name": "go", "source_identity": "tester",
        "idempotency_key": "once", "waitpoint_token": details.waitpoint_token,
    }));
    let delivered = world.backend.deliver_signal(signal.clone()).await.unwrap();
    let DeliverSignalResult::Accepted { signal_id, .. } = delivered else { panic!("expected acceptance") };
    let event = next(&mut feed).await;
    assert_eq!((event.execution_id, event.signal_id), (id, signal_id));
    assert_eq!((event.waitpoint_id, event.effect), (Some(details.waitpoint_id), SignalDeliveryEffect::Satisfied));
    assert_eq!((event.source_identity.as_deref(), event.at), (Some("tester"), world.now()));
    world.backend.deliver_signal(signal).await.unwrap();
    assert_eq!(next(&mut feed).await.effect, SignalDeliveryEffect::Deduped);
    assert_silent(&mut feed).await;
}

async fn tags_are_told_as_they_are_set(world: World) {
    let id = world.create().await;
    let mut feed = world.backend.subscribe_instance_tags(EventCursor::TAIL, &everything()).await.unwrap();
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    world.backend.set_execution_tag(id, "app.team", "red").await.unwrap();
    for value in ["blue", "red"] {
        let event = next(&mut feed).await;
        assert_eq!((event.execution_id, event.change, event.at), (id, InstanceTagChange::Attached, world.now()));
        assert_eq!(event.tag, TagPair { key: "app.team".into(), value: value.into() });
    }
    assert_silent(&mut feed).await;
}

async fn end(world: &World, submission: CreateExecutionArgs) -> ff_core::ids::ExecutionId {
    let id = world.submit(submission).await;
    let cancel = json!({"execution_id": id, "reason": "no", "source": "operator_override"});
    world.backend.cancel_execution(args(cancel)).await.unwrap();
    id
}

async fn a_feed_can_be_narrowed_to_a_namespace(world: World) {
    let other = Namespace::new("other").unwrap();
    let filter = ScannerFilter { namespace: Some(other.clone()), instance_tag: None };
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &filter).await.unwrap();
    end(&world, world.submission()).await;
    let wanted = end(&world, CreateExecutionArgs { namespace: other, ..world.submission() }).await;
    end(&world, world.submission()).await;
    assert_eq!(next(&mut feed).await.execution_id, wanted);
    assert_silent(&mut feed).await;
}

async fn a_feed_can_be_narrowed_to_a_tag_pair(world: World) {
    let instance_tag = Some(TagPair { key: "app.team".into(), value: "blue".into() });
    let filter = ScannerFilter { namespace: None, instance_tag };
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &filter).await.unwrap();
    let tagged = |value: &str| [("app.team".to_owned(), value.to_owned())].into();
    end(&world, world.submission()).await;
    end(&world, CreateExecutionArgs { tags: tagged("red"), ..world.submission() }).await;
    let wanted = end(&world, CreateExecutionArgs { tags: tagged("blue"), ..world.submission() }).await;
    assert_eq!(next(&mut feed).await.execution_id, wanted);
    let (later, handle) = world.claim_one().await;
    world.backend.set_execution_tag(later, "app.team", "blue").await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(next(&mut feed).await.execution_id, later, "a tag set later counts for later events");
    assert_silent(&mut feed).await;
}

async fn a_cursor_resumes_strictly_after_its_event(world: World) {
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(end(&world, world.submission()).await);
    }
    let mut cursors = Vec::new();
    for id in &ids {
        let event = next(&mut feed).await;
        assert_eq!(event.execution_id, *id);
        cursors.push(event.cursor);
    }
    for (nth, cursor) in cursors.into_iter().enumerate() {
        let mut resumed = world.backend.subscribe_completion(cursor, &everything()).await.unwrap();
        for id in &ids[nth + 1..] {
            assert_eq!(next(&mut resumed).await.execution_id, *id);
        }
        assert_silent(&mut resumed).await;
    }
}

async fn a_cursor_of_one_feed_resumes_another(world: World) {
    let mut leases = world.backend.subscribe_lease_history(EventCursor::TAIL, &everything()).await.unwrap();
    let (id, handle) = world.claim_one().await;
    let acquired = next(&mut leases).await;
    world.backend.complete(&handle, None).await.unwrap();
    let mut completions = world.backend.subscribe_completion(acquired.cursor, &everything()).await.unwrap();
    assert_eq!(next(&mut completions).await.execution_id, id);
}

async fn a_feed_covers_every_partition(world: World) {
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    let mut ids = Vec::new();
    for index in [0, 1, 100, 255] {
        let execution_id = Some(ff_core::ids::ExecutionId::new(index, world.uuid()));
        ids.push(end(&world, CreateExecutionArgs { execution_id, ..world.submission() }).await);
    }
    // Only what happens in one partition has an order.
    while !ids.is_empty() {
        let ended = next(&mut feed).await.execution_id;
        let place = ids.iter().position(|id| *id == ended).unwrap_or_else(|| panic!("{ended} twice, or not ours"));
        ids.swap_remove(place);
    }
}

async fn a_waiting_feed_wakes_on_the_next_event(world: World) {
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    let (event, id) = tokio::join!(next(&mut feed), async {
        tokio::task::yield_now().await;
        end(&world, world.submission()).await
    });
    assert_eq!(event.execution_id, id);
}

async fn a_foreign_or_truncated_cursor_is_refused_at_once(world: World) {
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    end(&world, world.submission()).await;
    let good = next(&mut feed).await.cursor;
    let mut foreign = good.as_bytes().to_vec();
    foreign[0] ^= 0x70;
    let truncated = good.as_bytes()[..good.as_bytes().len() - 1].to_vec();
    for bytes in [foreign, truncated, vec![0xff], b"nonsense".to_vec()] {
        let cursor = EventCursor::from_bytes(bytes);
        let refused = [
            world.backend.subscribe_completion(cursor.clone(), &everything()).await.err(),
            world.backend.subscribe_lease_history(cursor.clone(), &everything()).await.err(),
            world.backend.subscribe_signal_delivery(cursor.clone(), &everything()).await.err(),
            world.backend.subscribe_instance_tags(cursor, &everything()).await.err(),
        ];
        for error in refused {
            match error {
                Some(EngineError::Validation { kind: ValidationKind::InvalidInput, .. }) => {}
                other => panic!("expected a refusal, got {other:?}"),
            }
        }
    }
}

async fn a_cursor_whose_events_were_trimmed_is_expired(world: World) {
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    end(&world, world.submission()).await;
    let old = next(&mut feed).await.cursor;
    end(&world, world.submission()).await;
    const WEEK_MS: u64 = 7 * 24 * 60 * 60 * 1000;
    world.pass(WEEK_MS + 1).await;
    let expired = |error: Option<EngineError>| match error {
        Some(EngineError::CursorExpired { resume_from }) => resume_from,
        other => panic!("expected an expired cursor, got {other:?}"),
    };
    expired(world.backend.subscribe_lease_history(old.clone(), &everything()).await.err());
    expired(world.backend.subscribe_signal_delivery(old.clone(), &everything()).await.err());
    expired(world.backend.subscribe_instance_tags(old.clone(), &everything()).await.err());
    let resume_from = expired(world.backend.subscribe_completion(old, &everything()).await.err());
    let mut resumed = world.backend.subscribe_completion(resume_from, &everything()).await.unwrap();
    let id = end(&world, world.submission()).await;
    assert_eq!(next(&mut resumed).await.execution_id, id);
    match feed.next().await {
        Some(Err(EngineError::CursorExpired { .. })) => {}
        other => panic!("a feed that fell behind says so, got {other:?}"),
    }
    assert!(feed.next().await.is_none());
    assert!(world.now() > TimestampMs(0));
}

async fn a_shutdown_ends_every_feed_and_tells_where_to_go_on(world: World) {
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &everything()).await.unwrap();
    let first = end(&world, world.submission()).await;
    let delivered = next(&mut feed).await;
    assert_eq!(delivered.execution_id, first);
    let (last, ()) = tokio::join!(feed.next(), async {
        tokio::task::yield_now().await;
        world.backend.shutdown_prepare(Duration::from_millis(10)).await.unwrap();
    });
    match last {
        Some(Err(EngineError::StreamDisconnected { cursor })) => {
            let mut resumed = world.backend.subscribe_completion(cursor, &everything()).await.unwrap();
            assert!(matches!(resumed.next().await, Some(Err(EngineError::StreamDisconnected { .. }))));
        }
        other => panic!("expected a disconnection, got {other:?}"),
    }
    assert!(feed.next().await.is_none(), "the error is the last item");
}
