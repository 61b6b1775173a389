//! Children that an execution spawns in one call.

use std::collections::BTreeMap;

use ff_core::backend::attempts::FailureReason;
use ff_core::backend::dependencies::{DependencyKind, EdgeDirection, StageDependencyEdgeArgs};
use ff_core::backend::flows::{
    AddExecutionToFlowArgs, CancelFlowPolicy, CancelFlowWait, CreateFlowArgs, SPAWN_BYTES_MAX, SPAWN_CHILDREN_MAX,
    SpawnChild,
};
use ff_core::backend::ingress::{CreateExecutionArgs, SetLaneStateArgs};
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::handle::Handle;
use ff_core::ids::{EdgeId, ExecutionId, FlowId, LaneId, Namespace};
use ff_core::partition::PartitionCounts;
use ff_core::policy::PolicyDocument;
use ff_core::rules::retry::FailureClass;
use ff_core::state::{EdgeState, FlowState, LaneState, PublicState};
use ff_core::{Blob, Result};
use serde_json::json;

use super::kit;
use crate::attempts::owner::{lose, not_active, own, own_with, purge, retrying, run_out, take_as};
use crate::cases;
use crate::expect::{conflict, invalid, not_found, state};
use crate::harness::Damage;
use crate::stage::replay;
use crate::world::World;

cases!["flows":
    a_parent_gets_a_flow_for_its_children,
    a_parent_with_a_flow_keeps_it,
    a_parent_that_waits_goes_on_when_its_children_have_ended,
    results_of_children_come_by_name_and_the_input_stays,
    a_failed_child_does_not_hold_its_parent,
    a_second_round_of_children_is_waited_for_on_its_own,
    a_repeated_call_spawns_nothing_twice,
    a_later_attempt_finds_the_same_children,
    a_replayed_parent_has_children_of_its_own,
    children_have_lane_and_priority_of_their_parent_unless_they_say_otherwise,
    children_carry_what_they_are_given,
    a_repeat_adds_only_what_is_new,
    no_children_are_no_flow,
    a_thousand_children_are_one_commit,
    too_many_children_or_bad_names_are_refused,
    whatever_creating_a_child_refuses_refuses_all,
    children_with_too_many_bytes_together_are_refused,
    an_execution_with_the_id_of_a_child_stays_as_it_is,
    an_edge_with_the_id_of_a_childs_stays_as_it_is,
    a_flow_with_the_id_of_the_parents_stays_as_it_is,
    a_closed_lane_does_not_keep_a_repeat_from_its_answer,
    quotas_of_a_scope_hold_for_children,
    who_lost_the_parent_spawns_nothing,
    a_cancelled_flow_takes_no_children,
    children_of_a_missing_parent_are_not_found,
    spawning_for_an_unreadable_parent_is_reported_as_corruption,
];

/// A child on a lane of its own name.
fn child(name: &str) -> SpawnChild {
    SpawnChild { lane_id: Some(LaneId::new(name).unwrap()), ..SpawnChild::new(name, "step", name) }
}

fn children(names: &[&str]) -> Vec<SpawnChild> {
    names.iter().map(|name| child(name)).collect()
}

async fn spawn(world: &World, handle: &Handle, names: &[&str]) -> Vec<ExecutionId> {
    world.backend.spawn_children(handle, children(names)).await.unwrap()
}

async fn flow_of(world: &World, id: ExecutionId) -> Option<FlowId> {
    world.backend.resolve_execution_flow_id(id).await.unwrap()
}

async fn inputs(world: &World, id: ExecutionId) -> (Blob, BTreeMap<String, Blob>) {
    let context = world.backend.read_execution_context(id).await.unwrap();
    (context.input_payload, context.inputs)
}

async fn a_parent_gets_a_flow_for_its_children(world: World) {
    let (parent, handle) = world.claim_one().await;
    let ids = spawn(&world, &handle, &["a", "b"]).await;
    assert_eq!(ids, ["a", "b"].map(|name| ExecutionId::of_child(parent, 0, name)));
    let flow = flow_of(&world, parent).await.expect("the parent has a flow");
    assert_eq!(PartitionCounts::default().of_flow(flow), parent.partition());
    let described = world.backend.describe_flow(flow).await.unwrap().expect("the flow exists");
    assert_eq!((described.public_flow_state, described.node_count, described.edge_count), (FlowState::Open, 3, 2));
    let edges = world.backend.list_edges(flow, EdgeDirection::Incoming { to_node: parent }).await.unwrap();
    let mut seen: Vec<_> = edges
        .iter()
        .map(|edge| {
            (edge.upstream_execution_id, edge.dependency_kind, edge.edge_state, edge.data_passing_ref.as_deref())
        })
        .collect();
    seen.sort_by_key(|edge| edge.3);
    let expected = |id, name| (id, DependencyKind::Finished, EdgeState::Unsatisfied, Some(name));
    assert_eq!(seen, [expected(ids[0], "a"), expected(ids[1], "b")]);
    for id in ids {
        assert_eq!(world.state(id).await, PublicState::Waiting);
        assert_eq!(flow_of(&world, id).await, Some(flow));
    }
    assert_eq!(world.state(parent).await, PublicState::Active);
}

async fn a_parent_with_a_flow_keeps_it(world: World) {
    let graph = kit::submit(&world, kit::nodes(&["first", "parent"]), kit::edges(&[("first", "parent")])).await;
    kit::complete(&world, "first").await;
    let handle = kit::claim_now(&world, "parent").await;
    let ids = spawn(&world, &handle, &["a"]).await;
    assert_eq!(flow_of(&world, ids[0]).await, Some(graph.flow));
    let described = world.backend.describe_flow(graph.flow).await.unwrap().expect("the flow exists");
    assert_eq!((described.node_count, described.edge_count), (3, 2));
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(graph.id("parent")).await, PublicState::WaitingChildren);
    kit::complete(&world, "a").await;
    assert_eq!(world.state(graph.id("parent")).await, PublicState::Waiting);
}

async fn a_parent_that_waits_goes_on_when_its_children_have_ended(world: World) {
    let (parent, handle) = world.claim_one().await;
    spawn(&world, &handle, &["a", "b"]).await;
    kit::complete(&world, "a").await;
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete(&world, "b").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    assert!(world.claim().await.is_some());
}

async fn results_of_children_come_by_name_and_the_input_stays(world: World) {
    for names in [&["a"][..], &["a", "b"]] {
        let input = CreateExecutionArgs { input_payload: Blob::from("mine"), ..world.submission() };
        let parent = world.submit(input).await;
        let handle = world.claim().await.unwrap();
        spawn(&world, &handle, names).await;
        world.backend.wait_children(&handle).await.unwrap();
        for name in names {
            kit::complete_with(&world, name, name).await;
        }
        let expected = names.iter().map(|name| ((*name).to_owned(), Blob::from(*name))).collect();
        assert_eq!(inputs(&world, parent).await, (Blob::from("mine"), expected));
        let handle = world.claim().await.unwrap();
        world.backend.complete(&handle, None).await.unwrap();
    }
}

async fn a_failed_child_does_not_hold_its_parent(world: World) {
    let (parent, handle) = world.claim_one().await;
    spawn(&world, &handle, &["a"]).await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::fail(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn a_second_round_of_children_is_waited_for_on_its_own(world: World) {
    let (parent, mut handle) = world.claim_one().await;
    for name in ["a", "b", "c"] {
        spawn(&world, &handle, &[name]).await;
        world.backend.wait_children(&handle).await.unwrap();
        assert_eq!(world.state(parent).await, PublicState::WaitingChildren, "{name}");
        kit::complete_with(&world, name, name).await;
        handle = world.claim().await.unwrap();
    }
    let expected = ["a", "b", "c"].map(|name| (name.to_owned(), Blob::from(name)));
    assert_eq!(inputs(&world, parent).await.1, BTreeMap::from(expected));
}

async fn a_repeated_call_spawns_nothing_twice(world: World) {
    let (parent, handle) = world.claim_one().await;
    let first = spawn(&world, &handle, &["a", "b"]).await;
    let flow = flow_of(&world, parent).await.unwrap();
    let before = world.backend.describe_flow(flow).await.unwrap();
    kit::complete(&world, "a").await;
    assert_eq!(spawn(&world, &handle, &["a", "b"]).await, first);
    let after = world.backend.describe_flow(flow).await.unwrap();
    assert_eq!(after.map(|flow| flow.graph_revision), before.map(|flow| flow.graph_revision));
    assert_eq!(world.state(first[0]).await, PublicState::Completed);
    assert!(kit::claim(&world, "a").await.is_none());
}

async fn a_later_attempt_finds_the_same_children(world: World) {
    let owner = own_with(&world, &retrying(1)).await;
    let first = spawn(&world, &owner.handle, &["a"]).await;
    let reason = FailureReason::new("again");
    world.backend.fail(&owner.handle, reason, FailureClass::Transient).await.unwrap();
    kit::complete(&world, "a").await;
    world.pass(1_000).await;
    let second = take_as(&world, owner.id, 1, "worker-b").await;
    assert_eq!(spawn(&world, &second.handle, &["a"]).await, first);
    let third = lose(&world, &second).await;
    assert_eq!(spawn(&world, &third.handle, &["a"]).await, first);
    assert!(kit::claim(&world, "a").await.is_none());
}

async fn a_replayed_parent_has_children_of_its_own(world: World) {
    let owner = own(&world).await;
    let first = spawn(&world, &owner.handle, &["a"]).await;
    kit::complete(&world, "a").await;
    world.backend.complete(&owner.handle, None).await.unwrap();
    replay(&world, owner.id).await;
    let again = take_as(&world, owner.id, 1, "worker-a").await;
    let second = spawn(&world, &again.handle, &["a"]).await;
    assert_ne!(first, second);
    assert_eq!(second, [ExecutionId::of_child(owner.id, 1, "a")]);
    world.backend.wait_children(&again.handle).await.unwrap();
    assert_eq!(world.state(owner.id).await, PublicState::WaitingChildren);
    kit::complete(&world, "a").await;
    assert_eq!(world.state(owner.id).await, PublicState::Waiting);
}

async fn children_have_lane_and_priority_of_their_parent_unless_they_say_otherwise(world: World) {
    world.submit(CreateExecutionArgs { priority: 7, ..world.submission() }).await;
    let handle = world.claim().await.unwrap();
    let asked = vec![SpawnChild::new("like", "step", ""), SpawnChild { priority: Some(3), ..child("unlike") }];
    let ids = world.backend.spawn_children(&handle, asked).await.unwrap();
    let info = async |id| world.backend.read_execution_info(id).await.unwrap().unwrap();
    let (like, unlike) = (info(ids[0]).await, info(ids[1]).await);
    assert_eq!((like.lane_id, like.priority, like.namespace), (world.lane(), 7, world.namespace()));
    assert_eq!((unlike.lane_id, unlike.priority), (LaneId::new("unlike").unwrap(), 3));
}

async fn children_carry_what_they_are_given(world: World) {
    let (_parent, handle) = world.claim_one().await;
    let until = world.now().plus(1_000);
    let asked = SpawnChild {
        payload_encoding: Some("json".to_owned()),
        tags: BTreeMap::from([("app.key".to_owned(), "value".to_owned())]),
        policy: Some(PolicyDocument::from(&retrying(1))),
        delay_until: Some(until),
        ..child("a")
    };
    let id = world.backend.spawn_children(&handle, vec![asked]).await.unwrap()[0];
    let context = world.backend.read_execution_context(id).await.unwrap();
    assert_eq!((context.input_payload, context.payload_encoding.as_deref()), (Blob::from("a"), Some("json")));
    assert_eq!((context.execution_kind.as_str(), context.tags.len()), ("step", 1));
    assert_eq!(world.state(id).await, PublicState::Delayed);
    world.pass(1_000).await;
    let running = kit::claim_now(&world, "a").await;
    world.backend.fail(&running, FailureReason::new("no"), FailureClass::Transient).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Delayed, "its policy retries");
}

async fn a_repeat_adds_only_what_is_new(world: World) {
    let (parent, handle) = world.claim_one().await;
    let first = spawn(&world, &handle, &["a"]).await;
    let both = spawn(&world, &handle, &["b", "a"]).await;
    assert_eq!(both[1], first[0]);
    world.backend.wait_children(&handle).await.unwrap();
    kit::complete(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete(&world, "b").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn no_children_are_no_flow(world: World) {
    let (parent, handle) = world.claim_one().await;
    assert_eq!(spawn(&world, &handle, &[]).await, []);
    assert_eq!(flow_of(&world, parent).await, None);
}

async fn a_thousand_children_are_one_commit(world: World) {
    let (parent, handle) = world.claim_one().await;
    let asked = (0..SPAWN_CHILDREN_MAX).map(|n| SpawnChild::new(n.to_string(), "step", "")).collect();
    assert_eq!(world.backend.spawn_children(&handle, asked).await.unwrap().len(), SPAWN_CHILDREN_MAX);
    let flow = flow_of(&world, parent).await.unwrap();
    let described = world.backend.describe_flow(flow).await.unwrap().unwrap();
    assert_eq!((described.node_count, described.edge_count), (1_001, 1_000));
    assert_eq!(described.graph_revision, 2_001);
}

async fn too_many_children_or_bad_names_are_refused(world: World) {
    let (parent, handle) = world.claim_one().await;
    let many = (0..=SPAWN_CHILDREN_MAX).map(|n| SpawnChild::new(n.to_string(), "step", "")).collect();
    let named = |name: &str| vec![SpawnChild::new(name, "step", "")];
    let twice = children(&["a", "a"]);
    for asked in [many, named(""), named("a\nb"), named(&"x".repeat(257)), twice] {
        invalid(world.backend.spawn_children(&handle, asked).await, ValidationKind::InvalidInput);
    }
    assert_eq!(flow_of(&world, parent).await, None);
}

async fn whatever_creating_a_child_refuses_refuses_all(world: World) {
    let (parent, handle) = world.claim_one().await;
    let refused = async |bad: SpawnChild| -> Result<Vec<ExecutionId>> {
        world.backend.spawn_children(&handle, vec![child("good"), bad]).await
    };
    let large = SpawnChild { input_payload: Blob::from(vec![0; (1 << 20) + 1]), ..child("a") };
    invalid(refused(large).await, ValidationKind::PayloadTooLarge);
    let tags = BTreeMap::from([("bad key".to_owned(), String::new())]);
    invalid(refused(SpawnChild { tags, ..child("a") }).await, ValidationKind::InvalidTagKey);
    let unknown = json!({"budget_ids": [world.uuid()]});
    let policy = Some(serde_json::from_value(unknown).unwrap());
    invalid(refused(SpawnChild { policy, ..child("a") }).await, ValidationKind::InvalidInput);
    close(&world, "a").await;
    state(refused(child("a")).await, StateKind::LaneClosed);
    assert_eq!(flow_of(&world, parent).await, None);
    assert!(kit::claim(&world, "good").await.is_none());
}

async fn children_with_too_many_bytes_together_are_refused(world: World) {
    let (parent, handle) = world.claim_one().await;
    let large = |n: usize| SpawnChild::new(n.to_string(), "step", vec![0; 1 << 20]);
    let most = SPAWN_BYTES_MAX >> 20;
    let mut asked: Vec<_> = (0..most).map(large).collect();
    asked.push(SpawnChild::new("more", "step", "x"));
    invalid(world.backend.spawn_children(&handle, asked.clone()).await, ValidationKind::PayloadTooLarge);
    assert_eq!(flow_of(&world, parent).await, None);
    asked.pop();
    assert_eq!(world.backend.spawn_children(&handle, asked).await.unwrap().len(), most);
}

async fn an_execution_with_the_id_of_a_child_stays_as_it_is(world: World) {
    let (parent, handle) = world.claim_one().await;
    let (taken, other) = (ExecutionId::of_child(parent, 0, "a"), Namespace::new("other").unwrap());
    let strange = CreateExecutionArgs {
        execution_id: Some(taken),
        namespace: other.clone(),
        input_payload: Blob::from("theirs"),
        ..world.submission()
    };
    world.submit(strange).await;
    conflict(world.backend.spawn_children(&handle, children(&["b", "a"])).await, "id_taken");
    let info = world.backend.read_execution_info(taken).await.unwrap().unwrap();
    assert_eq!((info.namespace, flow_of(&world, taken).await), (other, None));
    assert_eq!(inputs(&world, taken).await.0, Blob::from("theirs"));
    assert_eq!(flow_of(&world, parent).await, None);
    assert!(kit::claim(&world, "b").await.is_none());
    spawn(&world, &handle, &["b"]).await;
    conflict(world.backend.spawn_children(&handle, children(&["a"])).await, "id_taken");
}

async fn an_edge_with_the_id_of_a_childs_stays_as_it_is(world: World) {
    let flow = kit::flow(&world).await;
    let (parent, other) = (kit::member(&world, flow, "parent").await, kit::member(&world, flow, "other").await);
    let handle = kit::claim_now(&world, "parent").await;
    let edge = StageDependencyEdgeArgs {
        flow_id: flow,
        edge_id: EdgeId::from_uuid(ExecutionId::of_child(parent, 0, "a").uuid()),
        upstream_execution_id: other,
        downstream_execution_id: parent,
        dependency_kind: "finished".to_owned(),
        data_passing_ref: Some("a".to_owned()),
        expected_graph_revision: kit::revision(&world, flow).await,
    };
    world.backend.stage_dependency_edge(edge).await.unwrap();
    conflict(world.backend.spawn_children(&handle, children(&["a"])).await, "id_taken");
    assert!(kit::claim(&world, "a").await.is_none());
}

async fn a_flow_with_the_id_of_the_parents_stays_as_it_is(world: World) {
    let (parent, handle) = world.claim_one().await;
    let flow_id = FlowId::of_children(parent, &PartitionCounts::default()).unwrap();
    let namespace = Namespace::new("other").unwrap();
    let theirs = CreateFlowArgs { flow_id, flow_kind: "theirs".to_owned(), namespace };
    world.backend.create_flow(theirs).await.unwrap();
    let before = world.backend.describe_flow(flow_id).await.unwrap();
    conflict(world.backend.spawn_children(&handle, children(&["a"])).await, "id_taken");
    assert_eq!(world.backend.describe_flow(flow_id).await.unwrap(), before);
    assert_eq!(flow_of(&world, parent).await, None);
}

async fn close(world: &World, lane: &str) {
    let args = SetLaneStateArgs {
        namespace: world.namespace(),
        lane_id: LaneId::new(lane).unwrap(),
        state: LaneState::Draining,
        reason: String::new(),
    };
    world.backend.set_lane_state(args).await.unwrap();
}

async fn a_closed_lane_does_not_keep_a_repeat_from_its_answer(world: World) {
    let (_parent, handle) = world.claim_one().await;
    let ids = spawn(&world, &handle, &["a"]).await;
    close(&world, "a").await;
    assert_eq!(spawn(&world, &handle, &["a"]).await, ids);
}

async fn quotas_of_a_scope_hold_for_children(world: World) {
    let (_parent, handle) = world.claim_one().await;
    let quota = json!({
        "quota_policy_id": world.uuid(), "namespace": "acme", "scope_type": "lane", "scope_id": "a",
        "window_seconds": 0, "max_requests_per_window": 0, "max_concurrent": 1, "jitter_ms": 0,
    });
    world.backend.create_quota_policy(crate::stage::args(quota)).await.unwrap();
    let two = ["one", "two"].map(|name| SpawnChild { name: name.to_owned(), ..child("a") });
    world.backend.spawn_children(&handle, two.into()).await.unwrap();
    assert!(kit::claim(&world, "a").await.is_some());
    assert!(kit::claim(&world, "a").await.is_none());
}

async fn who_lost_the_parent_spawns_nothing(world: World) {
    let again = async |handle: &Handle| world.backend.spawn_children(handle, children(&["late"])).await;
    let expired = own(&world).await;
    run_out(&world, &expired);
    state(again(&expired.handle).await, StateKind::LeaseExpired);
    lose(&world, &expired).await;
    state(again(&expired.handle).await, StateKind::StaleLease);
    let revoked = own(&world).await;
    let revocation = RevokeLeaseArgs {
        execution_id: revoked.id,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: String::new(),
    };
    world.backend.revoke_lease(revocation).await.unwrap();
    state(again(&revoked.handle).await, StateKind::LeaseRevoked);
    let ended = own(&world).await;
    let ids = spawn(&world, &ended.handle, &["early"]).await;
    world.backend.complete(&ended.handle, None).await.unwrap();
    not_active(again(&ended.handle).await);
    let bad = vec![SpawnChild { input_payload: Blob::from(vec![0; (1 << 20) + 1]), ..child("late") }];
    not_active(world.backend.spawn_children(&ended.handle, bad).await);
    let late = LaneId::new("late").unwrap();
    assert_eq!(world.backend.describe_lane(&world.namespace(), &late).await.unwrap(), None, "nothing was registered");
    not_active(world.backend.spawn_children(&ended.handle, children(&["early"])).await);
    assert_eq!(world.state(ids[0]).await, PublicState::Waiting);
    assert!(kit::claim(&world, "late").await.is_none());
}

async fn a_cancelled_flow_takes_no_children(world: World) {
    let flow = kit::flow(&world).await;
    let parent = kit::beside(&world, flow, "parent").await;
    let member = AddExecutionToFlowArgs { flow_id: flow, execution_id: parent };
    world.backend.add_execution_to_flow(member).await.unwrap();
    let handle = kit::claim_now(&world, "parent").await;
    world.backend.cancel_flow(flow, CancelFlowPolicy::FlowOnly, CancelFlowWait::NoWait {}).await.unwrap();
    let answer = world.backend.spawn_children(&handle, children(&["a"])).await;
    state(answer, StateKind::FlowAlreadyTerminal);
    assert!(kit::claim(&world, "a").await.is_none());
}

async fn children_of_a_missing_parent_are_not_found(world: World) {
    let owner = own(&world).await;
    world.backend.complete(&owner.handle, None).await.unwrap();
    purge(&world, owner.id).await;
    not_found(world.backend.spawn_children(&owner.handle, children(&["a"])).await, Entity::Execution);
}

async fn spawning_for_an_unreadable_parent_is_reported_as_corruption(world: World) {
    let (parent, handle) = world.claim_one().await;
    world.damage(Damage::Execution(parent)).await;
    invalid(world.backend.spawn_children(&handle, children(&["a"])).await, ValidationKind::Corruption);
}
