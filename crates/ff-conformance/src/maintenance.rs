//! Hooks that timers and reconcilers call.

use ff_core::Blob;
use ff_core::backend::attempts::FailureReason;
use ff_core::backend::flows::CreateFlowArgs;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::inspection::{SearchArgs, TagPair};
use ff_core::backend::maintenance::{ReconcileCounts, TrimRetentionArgs};
use ff_core::backend::streams::{Frame, FrameKind, StreamFrames};
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::cursor::FrameCursor;
use ff_core::error::ValidationKind;
use ff_core::handle::Handle;
use ff_core::ids::{AttemptIndex, BudgetId, ExecutionId, LaneId, Namespace, QuotaPolicyId};
use ff_core::partition::{PartitionCounts, PartitionKey};
use ff_core::policy::{ExecutionPolicy, PolicyDocument};
use ff_core::rules::retry::FailureClass;
use ff_core::state::{AttemptState, PublicState};
use serde_json::json;

use crate::cases;
use crate::expect::invalid;
use crate::harness::Damage;
use crate::stage::{args, chain, suspend};
use crate::world::{LEASE_MS, World};

cases!["maintenance":
    a_due_delay_is_promoted,
    a_delay_is_not_promoted_before_its_time_whatever_the_caller_says,
    promoting_anything_else_changes_nothing,
    finished_executions_are_purged_after_the_retention_that_is_asked_for,
    an_execution_can_have_a_retention_of_its_own,
    a_batch_is_bounded_and_the_rest_follows,
    a_purge_leaves_other_lanes_namespaces_and_tags_alone,
    a_purge_leaves_no_trace,
    a_key_outlives_the_execution_it_made,
    an_upstream_stays_while_somebody_waits_for_it,
    a_flow_counts_purged_members_and_goes_with_the_last,
    a_long_stream_is_purged,
    retention_runs_by_itself,
    an_unreadable_record_does_not_stop_other_due_work,
    a_faulty_partition_is_refused,
    lost_index_entries_are_repaired,
    a_reconciling_pass_counts_what_it_was_asked_about,
    budgets_are_checked_and_stay_as_they_are,
    quota_windows_are_trimmed_and_holders_counted,
];

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

const HOUR_MS: u64 = 60 * 60 * 1000;

fn trim_args(world: &World, id: ExecutionId, retention_ms: u64) -> TrimRetentionArgs {
    TrimRetentionArgs {
        partition: PartitionKey::from(id.partition()),
        namespace: None,
        lane_id: world.lane(),
        retention_ms,
        now: world.now(),
        batch_size: 20,
        filter: ScannerFilter::default(),
    }
}

async fn trim(world: &World, args: TrimRetentionArgs) -> u32 {
    world.backend.trim_retention(args).await.unwrap()
}

async fn is_gone(world: &World, id: ExecutionId) -> bool {
    world.backend.describe_execution(id).await.unwrap().is_none()
}

async fn finished(world: &World) -> ExecutionId {
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, Some(Blob::from("done"))).await.unwrap();
    id
}

async fn a_due_delay_is_promoted(world: World) {
    let until = world.now().plus(1000);
    let id = world.submit(CreateExecutionArgs { delay_until: Some(until), ..world.submission() }).await;
    world.advance(1000);
    world.backend.promote_delayed(id, world.now()).await.unwrap();
    let info = world.backend.read_execution_info(id).await.unwrap().expect("exists");
    assert_eq!(info.public_state, PublicState::Waiting);
    assert_eq!(info.state_vector.attempt_state, AttemptState::PendingFirstAttempt);
    assert!(world.claim().await.is_some());
}

async fn a_delay_is_not_promoted_before_its_time_whatever_the_caller_says(world: World) {
    let until = world.now().plus(1000);
    let id = world.submit(CreateExecutionArgs { delay_until: Some(until), ..world.submission() }).await;
    world.backend.promote_delayed(id, until.plus(5000)).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Delayed);
    world.advance(1000);
    world.backend.promote_delayed(id, ff_core::TimestampMs(until.0 - 1)).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Delayed, "the earlier of both times counts");
}

async fn promoting_anything_else_changes_nothing(world: World) {
    world.backend.promote_delayed(world.execution_id(), world.now()).await.unwrap();
    let nowhere = ExecutionId::new(u16::MAX, world.uuid());
    invalid(world.backend.promote_delayed(nowhere, world.now()).await, ValidationKind::InvalidInput);
    let (id, _) = world.claim_one().await;
    let before = world.backend.describe_execution(id).await.unwrap();
    world.advance(1);
    world.backend.promote_delayed(id, world.now()).await.unwrap();
    assert_eq!(world.backend.describe_execution(id).await.unwrap(), before);
}

async fn finished_executions_are_purged_after_the_retention_that_is_asked_for(world: World) {
    let id = finished(&world).await;
    let live = world.create().await;
    world.advance(999);
    assert_eq!(trim(&world, trim_args(&world, id, 1000)).await, 0);
    let early = TrimRetentionArgs { now: world.now().plus(5000), ..trim_args(&world, id, 1000) };
    assert_eq!(trim(&world, early).await, 0, "the clock of the store wins when it is earlier");
    world.advance(1);
    assert_eq!(trim(&world, trim_args(&world, id, 1000)).await, 1);
    assert_eq!(trim(&world, trim_args(&world, id, 1000)).await, 0);
    assert!(is_gone(&world, id).await && !is_gone(&world, live).await);
}

async fn an_execution_can_have_a_retention_of_its_own(world: World) {
    let kept = |retention_ms| ExecutionPolicy { retention_ms: Some(retention_ms), ..ExecutionPolicy::default() };
    let (short, handle) = world.claim_one_with(&kept(500)).await;
    world.backend.complete(&handle, None).await.unwrap();
    let (long, handle) = world.claim_one_with(&kept(5000)).await;
    world.backend.complete(&handle, None).await.unwrap();
    world.advance(500);
    assert_eq!(trim(&world, trim_args(&world, short, 1000)).await, 1);
    assert!(is_gone(&world, short).await);
    world.advance(4499);
    assert_eq!(trim(&world, trim_args(&world, long, 1000)).await, 0);
    world.advance(1);
    assert_eq!(trim(&world, trim_args(&world, long, 1000)).await, 1);
}

async fn a_batch_is_bounded_and_the_rest_follows(world: World) {
    let mut last = None;
    for _ in 0..5 {
        last = Some(finished(&world).await);
    }
    let id = last.unwrap();
    world.advance(1000);
    let batch = |batch_size| TrimRetentionArgs { batch_size, ..trim_args(&world, id, 1000) };
    assert_eq!(trim(&world, batch(0)).await, 0);
    assert_eq!(trim(&world, batch(2)).await, 2);
    assert_eq!(trim(&world, batch(2)).await, 2);
    assert_eq!(trim(&world, batch(2)).await, 1);
}

async fn a_purge_leaves_other_lanes_namespaces_and_tags_alone(world: World) {
    let id = finished(&world).await;
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    world.advance(1000);
    let all = trim_args(&world, id, 1000);
    let tag = |value: &str| ScannerFilter {
        namespace: None,
        instance_tag: Some(TagPair { key: "app.team".into(), value: value.into() }),
    };
    let foreign = Namespace::new("foreign").unwrap();
    let others = [
        TrimRetentionArgs { lane_id: LaneId::new("other").unwrap(), ..all.clone() },
        TrimRetentionArgs { namespace: Some(foreign.clone()), ..all.clone() },
        TrimRetentionArgs { filter: ScannerFilter { namespace: Some(foreign), instance_tag: None }, ..all.clone() },
        TrimRetentionArgs { filter: tag("red"), ..all.clone() },
        TrimRetentionArgs { partition: PartitionKey("{fp:1}".into()), ..all.clone() },
    ];
    for other in others {
        assert_eq!(trim(&world, other.clone()).await, 0, "{other:?}");
    }
    let mine = TrimRetentionArgs { filter: tag("blue"), namespace: Some(world.namespace()), ..all };
    assert_eq!(trim(&world, mine).await, 1);
}

async fn busy_life(world: &World) -> (ExecutionId, Handle) {
    let tags = [("app.team".to_owned(), "blue".to_owned())].into();
    let id = world.submit(CreateExecutionArgs { tags, input_payload: Blob::from("in"), ..world.submission() }).await;
    let handle = world.claim().await.expect("claimable");
    world.backend.progress(&handle, Some(1), Some("begun")).await.unwrap();
    world.backend.append_frame(&handle, Frame::new(FrameKind::Stdout, "hello")).await.unwrap();
    let summary: Frame = args(json!({"payload": "e30=", "kind": "event", "mode": {"type": "summary"}}));
    world.backend.append_frame(&handle, summary).await.unwrap();
    let details = suspend(world, &handle).await.details().clone();
    let signal = json!({
        "execution_id": id, "waitpoint_id": details.waitpoint_id, "signal_name": "go",
        "idempotency_key": "once", "waitpoint_token": details.waitpoint_token,
    });
    world.backend.deliver_signal(args(signal)).await.unwrap();
    let resumed = world.claim().await.expect("resumed");
    (id, resumed)
}

async fn a_purge_leaves_no_trace(world: World) {
    let budget_id = BudgetId::from_uuid(world.uuid());
    let budget = json!({"budget_id": budget_id, "namespace": "acme", "dimensions": ["tokens"],
        "hard_limits": [100], "soft_limits": [0]});
    world.backend.create_budget(args(budget)).await.unwrap();
    let neighbour = world.create().await;
    let wait = CreateExecutionArgs { delay_until: Some(world.now().plus(DAY_MS)), ..world.submission() };
    let delayed = world.submit(wait).await;
    let first = world.claim().await.expect("the neighbour is claimable");
    let (id, handle) = busy_life(&world).await;
    let spend = json!({"budget_id": budget_id, "execution_id": id, "deltas": {"tokens": 7}});
    world.backend.record_spend(args(spend)).await.unwrap();
    world.backend.complete(&handle, Some(Blob::from("out"))).await.unwrap();
    world.backend.renew(&first).await.unwrap();
    world.advance(1000);
    assert_eq!(trim(&world, trim_args(&world, id, 1000)).await, 1);

    assert!(is_gone(&world, id).await);
    assert_eq!(world.backend.read_execution_info(id).await.unwrap(), None);
    assert_eq!(world.backend.get_execution_result(id).await.unwrap(), None);
    assert_eq!(world.backend.get_execution_tag(id, "app.team").await.unwrap(), None);
    let stream =
        world.backend.read_stream(id, AttemptIndex(0), FrameCursor::Start, FrameCursor::End, 10).await.unwrap();
    assert_eq!(stream, StreamFrames::default());
    assert_eq!(world.backend.read_summary(id, AttemptIndex(0)).await.unwrap(), None);
    let found = world.backend.search_executions(SearchArgs::default()).await.unwrap().entries;
    assert!(found.iter().all(|entry| entry.execution_id != id));
    let listed = world.backend.list_executions(&PartitionKey::from(id.partition()), None, 100).await.unwrap();
    assert!(!listed.executions.contains(&id));
    // What it spent stays spent, but can no longer be given back.
    let release = json!({"budget_id": budget_id, "execution_id": id});
    world.backend.release_budget(args(release)).await.unwrap();
    assert_eq!(world.backend.get_budget_status(budget_id).await.unwrap().usage.get("tokens"), Some(&7));
    // The id is free again, and nobody else lost anything.
    world.submit(CreateExecutionArgs { execution_id: Some(id), ..world.submission() }).await;
    assert_eq!(world.state(neighbour).await, PublicState::Active);
    assert_eq!(world.state(delayed).await, PublicState::Delayed);
}

async fn a_key_outlives_the_execution_it_made(world: World) {
    let keyed = || CreateExecutionArgs { idempotency_key: Some("order-1".into()), ..world.submission() };
    let id = world.submit(keyed()).await;
    let handle = world.claim().await.expect("claimable");
    world.backend.complete(&handle, None).await.unwrap();
    world.advance(HOUR_MS);
    assert_eq!(trim(&world, trim_args(&world, id, HOUR_MS)).await, 1);
    let again = world.backend.create_execution(keyed()).await.unwrap();
    assert_eq!(again, CreateExecutionResult::Duplicate { execution_id: id });
    world.pass(DAY_MS - HOUR_MS).await;
    assert_ne!(world.submit(keyed()).await, id);
}

async fn an_upstream_stays_while_somebody_waits_for_it(world: World) {
    let (flow_id, members) = chain(&world, 2).await;
    let handle = world.claim().await.expect("the first member is claimable");
    // Staged but not applied: the downstream may still ask how the upstream ended.
    let execution_id = Some(world.member_id(flow_id));
    let third = world.submit(CreateExecutionArgs { execution_id, ..world.submission() }).await;
    let member = json!({"flow_id": flow_id, "execution_id": third});
    world.backend.add_execution_to_flow(args(member)).await.unwrap();
    let revision = world.backend.describe_flow(flow_id).await.unwrap().expect("the flow").graph_revision;
    let edge_id = world.uuid();
    let edge = json!({"flow_id": flow_id, "edge_id": edge_id, "upstream_execution_id": members[0],
        "downstream_execution_id": third, "expected_graph_revision": revision});
    world.backend.stage_dependency_edge(args(edge)).await.unwrap();
    world.backend.complete(&handle, None).await.unwrap();
    world.advance(1000);
    assert_eq!(trim(&world, trim_args(&world, members[0], 1000)).await, 0);
    assert!(!is_gone(&world, members[0]).await);
    let apply = json!({"flow_id": flow_id, "edge_id": edge_id, "upstream_execution_id": members[0],
        "downstream_execution_id": third});
    world.backend.apply_dependency_to_child(args(apply)).await.unwrap();
    assert_eq!(trim(&world, trim_args(&world, members[0], 1000)).await, 1);
    assert_eq!(world.state(third).await, PublicState::Waiting);
}

async fn a_flow_counts_purged_members_and_goes_with_the_last(world: World) {
    let (flow_id, members) = chain(&world, 2).await;
    let first = world.claim().await.expect("the first member is claimable");
    world.backend.complete(&first, None).await.unwrap();
    world.run_due().await;
    let second = world.claim().await.expect("the second member is claimable");
    world.advance(1000);
    assert_eq!(trim(&world, trim_args(&world, members[0], 1000)).await, 1);
    let flow = world.backend.describe_flow(flow_id).await.unwrap().expect("the flow is still there");
    assert_eq!((flow.node_count, flow.edge_count), (2, 1));
    world.backend.complete(&second, None).await.unwrap();
    world.pass(2000).await;
    let projection = world.backend.describe_flow(flow_id).await.unwrap().expect("the flow").summary;
    let projection = projection.expect("a finished flow is projected");
    assert_eq!((projection.total, projection.counts.get(&PublicState::Completed)), (2, Some(&2)));
    assert_eq!(trim(&world, trim_args(&world, members[1], 1000)).await, 1);
    assert_eq!(world.backend.describe_flow(flow_id).await.unwrap(), None);
    let listed = world.backend.list_flows(&PartitionKey::from(members[0].partition()), None, 10).await.unwrap();
    assert!(listed.flows.is_empty());
    world.pass(5000).await;
    let again = CreateFlowArgs { flow_id, flow_kind: "chain".into(), namespace: world.namespace() };
    world.backend.create_flow(again).await.unwrap();
    let fresh = world.backend.describe_flow(flow_id).await.unwrap().expect("a new flow");
    assert_eq!((fresh.node_count, fresh.edge_count), (0, 0));
}

async fn a_long_stream_is_purged(world: World) {
    let (id, handle) = world.claim_one().await;
    for n in 0..500 {
        let frame = Frame::new(FrameKind::Stdout, n.to_string().as_str());
        world.backend.append_frame(&handle, frame).await.unwrap();
    }
    world.backend.fail(&handle, FailureReason::new("broken"), FailureClass::Permanent).await.unwrap();
    world.advance(1000);
    assert_eq!(trim(&world, trim_args(&world, id, 1000)).await, 1);
    let stream =
        world.backend.read_stream(id, AttemptIndex(0), FrameCursor::Start, FrameCursor::End, 10).await.unwrap();
    assert_eq!(stream, StreamFrames::default());
}

async fn retention_runs_by_itself(world: World) {
    let ordinary = finished(&world).await;
    let policy = ExecutionPolicy { retention_ms: Some(HOUR_MS), ..ExecutionPolicy::default() };
    let (brief, handle) = world.claim_one_with(&policy).await;
    world.backend.complete(&handle, None).await.unwrap();
    let live = world.create().await;
    world.pass(HOUR_MS - 1).await;
    assert!(!is_gone(&world, brief).await);
    world.pass(1).await;
    assert!(is_gone(&world, brief).await && !is_gone(&world, ordinary).await);
    world.pass(DAY_MS - HOUR_MS).await;
    assert!(is_gone(&world, ordinary).await && !is_gone(&world, live).await);
}

async fn an_unreadable_record_does_not_stop_other_due_work(world: World) {
    let (lost, _) = world.claim_one().await;
    let until = world.now().plus(LEASE_MS);
    let delayed = world.submit(CreateExecutionArgs { delay_until: Some(until), ..world.submission() }).await;
    world.damage(Damage::Execution(lost)).await;
    world.pass(LEASE_MS).await;
    assert_eq!(world.state(delayed).await, PublicState::Waiting);
}

async fn a_faulty_partition_is_refused(world: World) {
    let id = world.create().await;
    let filter = ScannerFilter::default();
    for text in ["", "{fp:256}", "{zz:1}", "fp:1", "{g:0}"] {
        let partition = PartitionKey(text.into());
        let args = TrimRetentionArgs { partition: partition.clone(), ..trim_args(&world, id, 1) };
        invalid(world.backend.trim_retention(args).await, ValidationKind::InvalidInput);
        let backend = &world.backend;
        invalid(backend.reconcile_execution_index(&partition, &[], &filter).await, ValidationKind::InvalidInput);
        invalid(backend.reconcile_budget_counters(&partition, world.now()).await, ValidationKind::InvalidInput);
        invalid(backend.reconcile_quota_counters(&partition, world.now()).await, ValidationKind::InvalidInput);
    }
}

async fn lost_index_entries_are_repaired(world: World) {
    let id = world.create().await;
    world.lose_index_entries(id).await;
    assert!(world.claim().await.is_none());
    let partition = PartitionKey::from(id.partition());
    let filter = ScannerFilter::default();
    let counts = world.backend.reconcile_execution_index(&partition, &[], &filter).await.unwrap();
    assert_eq!(counts, ReconcileCounts { processed: 1, errors: 0 });
    assert!(world.claim().await.is_some());
}

async fn a_reconciling_pass_counts_what_it_was_asked_about(world: World) {
    let id = world.create().await;
    world.create().await;
    world.backend.set_execution_tag(id, "app.team", "blue").await.unwrap();
    let partition = PartitionKey::from(id.partition());
    let tagged =
        ScannerFilter { namespace: None, instance_tag: Some(TagPair { key: "app.team".into(), value: "blue".into() }) };
    let processed = async |lanes: &[LaneId], filter: &ScannerFilter| {
        world.backend.reconcile_execution_index(&partition, lanes, filter).await.unwrap().processed
    };
    assert_eq!(processed(&[], &ScannerFilter::default()).await, 2);
    assert_eq!(processed(&[world.lane()], &ScannerFilter::default()).await, 2);
    assert_eq!(processed(&[LaneId::new("other").unwrap()], &ScannerFilter::default()).await, 0);
    assert_eq!(processed(&[], &tagged).await, 1);
}

async fn budgets_are_checked_and_stay_as_they_are(world: World) {
    let budget_id = BudgetId::from_uuid(world.uuid());
    let budget = json!({"budget_id": budget_id, "namespace": "acme", "dimensions": ["tokens"],
        "hard_limits": [100], "soft_limits": [0]});
    world.backend.create_budget(args(budget)).await.unwrap();
    let spend = json!({"budget_id": budget_id, "execution_id": world.create().await, "deltas": {"tokens": 7}});
    world.backend.record_spend(args(spend)).await.unwrap();
    let before = world.backend.get_budget_status(budget_id).await.unwrap();
    let partition = PartitionKey::from(PartitionCounts::default().of_budget(budget_id));
    let counts = world.backend.reconcile_budget_counters(&partition, world.now()).await.unwrap();
    assert_eq!(counts, ReconcileCounts { processed: 1, errors: 0 });
    assert_eq!(world.backend.get_budget_status(budget_id).await.unwrap(), before);
}

async fn quota_windows_are_trimmed_and_holders_counted(world: World) {
    let quota_policy_id = QuotaPolicyId::from_uuid(world.uuid());
    let quota = json!({"quota_policy_id": quota_policy_id, "namespace": "acme", "window_seconds": 60,
        "max_requests_per_window": 10, "max_concurrent": 1});
    world.backend.create_quota_policy(args(quota)).await.unwrap();
    let policy = ExecutionPolicy { quota_policy_ids: vec![quota_policy_id], ..ExecutionPolicy::default() };
    let (_, holder) = world.claim_one_with(&policy).await;
    let waiting = CreateExecutionArgs { policy: Some(PolicyDocument::from(&policy)), ..world.submission() };
    let waiting = world.submit(waiting).await;
    let partition = PartitionKey::from(PartitionCounts::default().of_quota(quota_policy_id));
    let reconcile = async || world.backend.reconcile_quota_counters(&partition, world.now()).await.unwrap();
    assert_eq!(reconcile().await, ReconcileCounts { processed: 1, errors: 0 });
    assert!(world.claim().await.is_none(), "the holder still counts");
    world.backend.complete(&holder, None).await.unwrap();
    world.advance(60_000);
    assert_eq!(reconcile().await, ReconcileCounts { processed: 1, errors: 0 });
    world.run_due().await;
    world.claim().await.expect("a slot is free");
    assert_eq!(world.state(waiting).await, PublicState::Active);
}
