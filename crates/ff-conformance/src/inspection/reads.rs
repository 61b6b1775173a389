//! Reads of one execution.

use std::collections::BTreeMap;

use ff_core::Blob;
use ff_core::backend::attempts::FailureReason;
use ff_core::backend::flows::{FlowNode, SpawnChild};
use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs};
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::error::ValidationKind;
use ff_core::ids::{AttemptIndex, ExecutionId};
use ff_core::policy::{ExecutionPolicy, PolicyDocument, RetryPolicy};
use ff_core::rules::retry::FailureClass;
use ff_core::state::{AttemptState, BlockingReason, LifecyclePhase, OwnershipState, PublicState, TerminalOutcome};
use ff_core::trace::TraceContext;

use crate::cases;
use crate::expect::invalid;
use crate::flows::kit;
use crate::harness::Damage;
use crate::stage::{chain, replay, suspend};
use crate::world::{LEASE_MS, World};

cases!["inspection::reads":
    a_waiting_execution_is_described,
    a_claimed_execution_shows_its_attempt_and_lease,
    a_renewal_shows_in_the_lease,
    an_expired_lease_is_still_described_and_a_revoked_one_is_not,
    an_attempt_that_is_due_is_not_described_as_current,
    a_suspended_execution_shows_its_waitpoint,
    a_context_gives_the_input_byte_for_byte,
    a_context_tells_where_the_handler_stands,
    a_trace_context_reaches_the_handler,
    a_context_of_nothing_is_invalid,
    attempts_are_counted_from_the_first_claim,
    the_flow_of_a_member_is_found,
    the_state_vector_is_shown_whole,
    a_result_shows_only_after_a_completion_that_gave_one,
    a_replay_hides_the_earlier_result,
    missing_executions_read_as_none,
    an_id_of_a_partition_that_does_not_exist_reads_as_missing,
    fields_are_read_by_name,
    unknown_names_and_missing_executions_have_no_fields,
    progress_and_failures_show_as_fields,
    a_damaged_record_is_corruption,
];

async fn a_waiting_execution_is_described(world: World) {
    let tags = BTreeMap::from([("app.team".to_owned(), "blue".to_owned())]);
    let id = world.submit(CreateExecutionArgs { tags: tags.clone(), ..world.submission() }).await;
    let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
    assert_eq!((snapshot.execution_id, snapshot.namespace, snapshot.lane_id), (id, world.namespace(), world.lane()));
    assert_eq!(snapshot.public_state, PublicState::Waiting);
    assert_eq!(snapshot.blocking_reason, Some(BlockingReason::WaitingForWorker));
    assert_eq!((snapshot.current_attempt, snapshot.current_lease, snapshot.current_waitpoint), (None, None, None));
    assert_eq!((snapshot.created_at, snapshot.last_mutation_at), (world.now(), world.now()));
    assert_eq!((snapshot.total_attempt_count, snapshot.tags, snapshot.flow_id), (0, tags, None));
}

async fn a_claimed_execution_shows_its_attempt_and_lease(world: World) {
    let (id, _) = world.claim_one().await;
    let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
    let (attempt, lease) = (snapshot.current_attempt.expect("attempt"), snapshot.current_lease.expect("lease"));
    assert_eq!((snapshot.public_state, snapshot.blocking_reason), (PublicState::Active, None));
    assert_eq!(attempt.attempt_index, AttemptIndex(0));
    assert_eq!((lease.lease_epoch.0, lease.attempt_index), (1, AttemptIndex(0)));
    assert_eq!((lease.worker_instance_id, lease.last_heartbeat_at), (world.worker().1, None));
    assert_eq!(lease.expires_at, world.now().plus(LEASE_MS));
    assert_eq!(snapshot.total_attempt_count, 1);
}

async fn a_renewal_shows_in_the_lease(world: World) {
    let (id, handle) = world.claim_one().await;
    world.advance(1000);
    world.backend.renew(&handle).await.unwrap();
    let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
    let lease = snapshot.current_lease.expect("lease");
    assert_eq!((lease.last_heartbeat_at, lease.expires_at), (Some(world.now()), world.now().plus(LEASE_MS)));
    assert_eq!(snapshot.last_mutation_at, world.now());
}

async fn an_expired_lease_is_still_described_and_a_revoked_one_is_not(world: World) {
    let (expired, _) = world.claim_one().await;
    world.pass(LEASE_MS).await;
    let snapshot = world.backend.describe_execution(expired).await.unwrap().expect("described");
    assert_eq!(snapshot.public_state, PublicState::Active);
    assert!(snapshot.current_lease.is_some());

    let other = World::submission(&world);
    let revoked = world.submit(CreateExecutionArgs { priority: 10, ..other }).await;
    world.claim().await.expect("claimable");
    let revoke = RevokeLeaseArgs {
        execution_id: revoked,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "test".into(),
    };
    world.backend.revoke_lease(revoke).await.unwrap();
    let snapshot = world.backend.describe_execution(revoked).await.unwrap().expect("described");
    assert_eq!((snapshot.public_state, snapshot.current_lease), (PublicState::Active, None));
    assert_eq!(snapshot.blocking_reason, Some(BlockingReason::WaitingForWorker));
}

fn retrying() -> ExecutionPolicy {
    ExecutionPolicy { retry_policy: Some(RetryPolicy::default()), ..ExecutionPolicy::default() }
}

async fn an_attempt_that_is_due_is_not_described_as_current(world: World) {
    let (id, handle) = world.claim_one_with(&retrying()).await;
    world.backend.fail(&handle, FailureReason::new("again"), FailureClass::Transient).await.unwrap();
    let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
    assert_eq!(snapshot.public_state, PublicState::Delayed);
    assert_eq!(snapshot.blocking_reason, Some(BlockingReason::WaitingForRetryBackoff));
    assert_eq!((snapshot.current_attempt, snapshot.current_lease), (None, None));
    assert_eq!(snapshot.total_attempt_count, 1);
}

async fn a_suspended_execution_shows_its_waitpoint(world: World) {
    let (id, handle) = world.claim_one().await;
    let outcome = suspend(&world, &handle).await;
    let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
    assert_eq!(snapshot.public_state, PublicState::Suspended);
    assert_eq!(snapshot.current_waitpoint, Some(outcome.details().waitpoint_id));
    assert_eq!(
        (snapshot.current_lease, snapshot.current_attempt.map(|it| it.attempt_index)),
        (None, Some(AttemptIndex(0)))
    );
}

async fn a_context_gives_the_input_byte_for_byte(world: World) {
    let bytes = Blob::from(vec![0, 255, 128, 10]);
    let tags = BTreeMap::from([("app.team".to_owned(), "blue".to_owned())]);
    let id = world
        .submit(CreateExecutionArgs {
            input_payload: bytes.clone(),
            payload_encoding: Some("application/octet-stream".into()),
            tags: tags.clone(),
            ..world.submission()
        })
        .await;
    let context = world.backend.read_execution_context(id).await.unwrap();
    assert_eq!((context.input_payload, context.execution_kind.as_str()), (bytes, "task"));
    assert_eq!((context.tags, context.payload_encoding.as_deref()), (tags, Some("application/octet-stream")));
    assert!(context.inputs.is_empty());
}

async fn a_context_tells_where_the_handler_stands(world: World) {
    let id = world.create_with(&retrying()).await;
    let seen = async || {
        let context = world.backend.read_execution_context(id).await.unwrap();
        (context.attempt_index.0, context.retry_count, context.replay_count, context.suspension_count)
    };
    assert_eq!(seen().await, (0, 0, 0, 0));
    let handle = world.claim().await.expect("claimable");
    world.backend.fail(&handle, FailureReason::new("broken"), FailureClass::Transient).await.unwrap();
    world.pass(60_000).await;
    let handle = world.claim().await.expect("retried");
    assert_eq!(seen().await, (1, 1, 0, 0));
    suspend(&world, &handle).await;
    assert_eq!(seen().await, (1, 1, 0, 1));
    kit::cancel(&world, id).await;
    replay(&world, id).await;
    world.claim().await.expect("replayed");
    assert_eq!(seen().await, (2, 0, 1, 1));
    let context = world.backend.read_execution_context(id).await.unwrap();
    assert_eq!((context.namespace, context.lane_id, context.flow_id), (world.namespace(), world.lane(), None));
    let (flow, members) = chain(&world, 1).await;
    let context = world.backend.read_execution_context(members[0]).await.unwrap();
    assert_eq!(context.flow_id, Some(flow));
}

async fn a_trace_context_reaches_the_handler(world: World) {
    let trace = TraceContext {
        traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
        tracestate: Some("vendor=value".to_owned()),
    };
    let traced = CreateExecutionArgs { trace_context: Some(trace.clone()), ..world.submission() };
    let seen = async |id| world.backend.read_execution_context(id).await.unwrap().trace_context;
    let id = world.submit(traced.clone()).await;
    assert_eq!(seen(id).await, Some(trace.clone()));
    let handle = world.claim().await.expect("claimable");
    let spawned = SpawnChild { trace_context: Some(trace.clone()), ..SpawnChild::new("a", "step", "") };
    let children = vec![spawned, SpawnChild::new("b", "step", "")];
    let ids = world.backend.spawn_children(&handle, children).await.unwrap();
    assert_eq!((seen(ids[0]).await, seen(ids[1]).await), (Some(trace.clone()), None));
    let node = FlowNode { trace_context: Some(trace.clone()), ..kit::node("traced") };
    let graph = kit::submit(&world, vec![node, kit::node("plain")], Vec::new()).await;
    assert_eq!((seen(graph.id("traced")).await, seen(graph.id("plain")).await), (Some(trace.clone()), None));
    for bad in ["", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"] {
        let trace = TraceContext { traceparent: bad.to_owned(), ..trace.clone() };
        let args = CreateExecutionArgs { trace_context: Some(trace), ..world.submission() };
        invalid(world.backend.create_execution(args).await, ValidationKind::InvalidInput);
    }
}

async fn a_context_of_nothing_is_invalid(world: World) {
    let id = world.execution_id();
    invalid(world.backend.read_execution_context(id).await, ValidationKind::InvalidInput);
    invalid(world.backend.read_current_attempt_index(id).await, ValidationKind::InvalidInput);
    invalid(world.backend.read_total_attempt_count(id).await, ValidationKind::InvalidInput);
}

async fn attempts_are_counted_from_the_first_claim(world: World) {
    let id = world.create_with(&retrying()).await;
    let seen = async || {
        let index = world.backend.read_current_attempt_index(id).await.unwrap();
        (index.0, world.backend.read_total_attempt_count(id).await.unwrap())
    };
    assert_eq!(seen().await, (0, 0));
    let handle = world.claim().await.expect("claimable");
    assert_eq!(seen().await, (0, 1));
    world.backend.fail(&handle, FailureReason::new("again"), FailureClass::Transient).await.unwrap();
    assert_eq!(seen().await, (0, 1));
    world.pass(60_000).await;
    world.claim().await.expect("claimable");
    assert_eq!(seen().await, (1, 2));
}

async fn the_flow_of_a_member_is_found(world: World) {
    let (flow, members) = chain(&world, 1).await;
    assert_eq!(world.backend.resolve_execution_flow_id(members[0]).await.unwrap(), Some(flow));
    let alone = world.create().await;
    assert_eq!(world.backend.resolve_execution_flow_id(alone).await.unwrap(), None);
}

async fn the_state_vector_is_shown_whole(world: World) {
    let (id, handle) = world.claim_one().await;
    let started = world.now();
    world.advance(5);
    world.backend.complete(&handle, None).await.unwrap();
    let info = world.backend.read_execution_info(id).await.unwrap().expect("exists");
    let vector = info.state_vector;
    assert_eq!((vector.lifecycle_phase, vector.ownership_state), (LifecyclePhase::Terminal, OwnershipState::Unowned));
    assert_eq!(
        (vector.terminal_outcome, vector.attempt_state),
        (TerminalOutcome::Success, AttemptState::AttemptTerminal)
    );
    assert_eq!((info.public_state, info.public_state), (PublicState::Completed, vector.public_state()));
    assert_eq!((info.created_at, info.started_at, info.completed_at), (started, Some(started), Some(world.now())));
    assert_eq!((info.priority, info.execution_kind.as_str(), info.blocking_detail.as_str()), (0, "task", ""));
    assert_eq!((info.namespace, info.lane_id, info.flow_id), (world.namespace(), world.lane(), None));
    assert_eq!((info.execution_id, info.current_attempt_index), (id, AttemptIndex(0)));
}

async fn a_result_shows_only_after_a_completion_that_gave_one(world: World) {
    let (id, handle) = world.claim_one().await;
    assert_eq!(world.backend.get_execution_result(id).await.unwrap(), None);
    world.backend.complete(&handle, Some(Blob::from(vec![0, 255]))).await.unwrap();
    assert_eq!(world.backend.get_execution_result(id).await.unwrap(), Some(Blob::from(vec![0, 255])));

    let (void, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(world.backend.get_execution_result(void).await.unwrap(), None);
    let (empty, handle) = world.claim_one().await;
    world.backend.complete(&handle, Some(Blob::empty())).await.unwrap();
    assert_eq!(world.backend.get_execution_result(empty).await.unwrap(), Some(Blob::empty()));
}

async fn a_replay_hides_the_earlier_result(world: World) {
    let (id, handle) = world.claim_one().await;
    world.backend.complete(&handle, Some(Blob::from("first"))).await.unwrap();
    let replay = ReplayExecutionArgs { execution_id: id, reason: "again".into(), requested_by: "me".into() };
    world.backend.replay_execution(replay).await.unwrap();
    assert_eq!(world.backend.get_execution_result(id).await.unwrap(), None);
    let again = world.claim().await.expect("claimable");
    world.backend.complete(&again, None).await.unwrap();
    assert_eq!(world.backend.get_execution_result(id).await.unwrap(), None, "a void completion has no result");
}

async fn everything_is_none(world: &World, id: ExecutionId) {
    assert_eq!(world.backend.describe_execution(id).await.unwrap(), None);
    assert_eq!(world.backend.read_execution_state(id).await.unwrap(), None);
    assert_eq!(world.backend.read_execution_info(id).await.unwrap(), None);
    assert_eq!(world.backend.get_execution_result(id).await.unwrap(), None);
    assert_eq!(world.backend.resolve_execution_flow_id(id).await.unwrap(), None);
    assert_eq!(world.backend.get_execution_namespace(id).await.unwrap(), None);
    assert_eq!(world.backend.get_execution_tag(id, "app.team").await.unwrap(), None);
    assert_eq!(world.backend.explain(id).await.unwrap(), None);
}

async fn missing_executions_read_as_none(world: World) {
    everything_is_none(&world, world.execution_id()).await;
    let id = world.create().await;
    assert_eq!(world.backend.read_execution_state(id).await.unwrap(), Some(PublicState::Waiting));
    assert_eq!(world.backend.get_execution_namespace(id).await.unwrap(), Some(world.namespace()));
}

async fn an_id_of_a_partition_that_does_not_exist_reads_as_missing(world: World) {
    everything_is_none(&world, ExecutionId::new(u16::MAX, world.uuid())).await;
}

async fn fields(world: &World, id: ExecutionId, names: &[&str]) -> Vec<Option<String>> {
    let mut found = world.backend.read_exec_core_fields(id, names).await.unwrap();
    assert_eq!(found.len(), names.len());
    names.iter().map(|name| found.remove(*name).expect("every name is answered")).collect()
}

async fn fields_are_read_by_name(world: World) {
    let id = world
        .submit(CreateExecutionArgs {
            priority: 7,
            creator_identity: "me".into(),
            policy: Some(PolicyDocument::from(&ExecutionPolicy::default())),
            ..world.submission()
        })
        .await;
    let names =
        ["execution_id", "lane_id", "priority", "public_state", "lease_epoch", "retry_count", "creator_identity"];
    let before = fields(&world, id, &names).await;
    let expected = [&id.to_string(), "default", "7", "waiting", "0", "0", "me"];
    assert_eq!(before, expected.map(|text| Some(text.to_owned())));
    world.claim().await.expect("claimable");
    let names = ["public_state", "lease_epoch", "worker_instance_id", "lease_expires_at", "current_attempt_index"];
    let after = fields(&world, id, &names).await;
    let expires = world.now().plus(LEASE_MS).to_string();
    assert_eq!(after, ["active", "1", "worker-a-1", &expires, "0"].map(|text| Some(text.to_owned())));
}

async fn unknown_names_and_missing_executions_have_no_fields(world: World) {
    let id = world.create().await;
    assert!(world.backend.read_exec_core_fields(id, &[]).await.unwrap().is_empty());
    let odd = ["nonsense", "", "lane_id; drop table execution", "usage.", "usage.tokens", "lease_id", "completed_at"];
    assert!(fields(&world, id, &odd).await.iter().all(Option::is_none));
    let missing = world.execution_id();
    assert!(fields(&world, missing, &["execution_id", "lane_id"]).await.iter().all(Option::is_none));
}

async fn progress_and_failures_show_as_fields(world: World) {
    let (id, handle) = world.claim_one().await;
    world.advance(10);
    world.backend.progress(&handle, Some(40), Some("halfway")).await.unwrap();
    let names = ["progress_percent", "progress_message", "failure_reason"];
    let shown = fields(&world, id, &names).await;
    assert_eq!(shown, [Some("40".to_owned()), Some("halfway".to_owned()), None]);
    let snapshot = world.backend.describe_execution(id).await.unwrap().expect("described");
    assert_eq!(snapshot.last_mutation_at, world.now());
    world.backend.fail(&handle, FailureReason::new("broken"), FailureClass::Permanent).await.unwrap();
    let shown = fields(&world, id, &["failure_reason", "terminal_outcome", "signal_count"]).await;
    assert_eq!(shown, ["broken", "failed", "0"].map(|text| Some(text.to_owned())));
}

async fn a_damaged_record_is_corruption(world: World) {
    let id = world.create().await;
    world.damage(Damage::Definition(id)).await;
    invalid(world.backend.read_execution_context(id).await, ValidationKind::Corruption);
    invalid(world.backend.read_exec_core_fields(id, &["lane_id"]).await, ValidationKind::Corruption);
    world.damage(Damage::Execution(id)).await;
    invalid(world.backend.describe_execution(id).await, ValidationKind::Corruption);
    invalid(world.backend.read_execution_state(id).await, ValidationKind::Corruption);
    invalid(world.backend.read_execution_info(id).await, ValidationKind::Corruption);
    invalid(world.backend.get_execution_result(id).await, ValidationKind::Corruption);
    invalid(world.backend.resolve_execution_flow_id(id).await, ValidationKind::Corruption);
    invalid(world.backend.get_execution_namespace(id).await, ValidationKind::Corruption);
    invalid(world.backend.read_current_attempt_index(id).await, ValidationKind::Corruption);
    invalid(world.backend.read_total_attempt_count(id).await, ValidationKind::Corruption);
    invalid(world.backend.explain(id).await, ValidationKind::Corruption);
    invalid(world.backend.set_execution_tag(id, "app.team", "blue").await, ValidationKind::Corruption);
}
