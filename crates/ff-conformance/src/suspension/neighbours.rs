//! What a suspension means to streams, quotas and graphs.

use ff_core::backend::dependencies::{ApplyDependencyToChildArgs, StageDependencyEdgeArgs};
use ff_core::backend::quotas::CreateQuotaPolicyArgs;
use ff_core::backend::streams::{Frame, FrameKind, StreamFrames};
use ff_core::backend::suspension::SuspendArgs;
use ff_core::cursor::FrameCursor;
use ff_core::ids::{AttemptIndex, EdgeId, ExecutionId, FlowId, QuotaPolicyId};
use ff_core::policy::ExecutionPolicy;
use ff_core::state::{PublicState, StreamCloseReason};

use super::fixtures::*;
use crate::flows::kit;
use crate::{World, cases};

cases!["suspension":
    a_resumed_attempt_goes_on_with_its_stream,
    a_timeout_that_ends_an_execution_closes_its_stream,
    a_suspended_execution_holds_no_quota_slot,
    dependencies_applied_while_suspended_hold_the_resumed_execution,
    a_resume_delay_goes_on_behind_dependencies,
];

async fn stream(world: &World, id: ExecutionId) -> StreamFrames {
    world.backend.read_stream(id, AttemptIndex(0), FrameCursor::Start, FrameCursor::End, 100).await.unwrap()
}

async fn a_resumed_attempt_goes_on_with_its_stream(world: World) {
    let (id, handle) = held(&world).await;
    world.backend.append_frame(&handle, Frame::new(FrameKind::Event, "before")).await.unwrap();
    let parked = park_with(&world, id, handle, ask(&world)).await;
    assert_eq!(stream(&world, id).await.closed_at, None, "a suspended attempt is not over");
    deliver(&world, parked.signal("go")).await;
    let handle = world.claim().await.expect("resumed");
    world.backend.append_frame(&handle, Frame::new(FrameKind::Event, "after")).await.unwrap();
    assert_eq!(stream(&world, id).await.frames.len(), 2);
}

async fn a_timeout_that_ends_an_execution_closes_its_stream(world: World) {
    let timeout_at = Some(world.now().plus(10));
    let parked = parked(&world, SuspendArgs { timeout_at, ..ask(&world) }).await;
    world.pass(10).await;
    assert_eq!(stream(&world, parked.id).await.closed_reason, Some(StreamCloseReason::SuspensionTimeout));
}

async fn a_suspended_execution_holds_no_quota_slot(world: World) {
    seed(&world).await;
    let quota_policy_id = QuotaPolicyId::from_uuid(world.uuid());
    let one_at_once = CreateQuotaPolicyArgs {
        quota_policy_id,
        namespace: world.namespace(),
        scope_type: "policy".into(),
        scope_id: String::new(),
        window_seconds: 0,
        max_requests_per_window: 0,
        max_concurrent: 1,
        jitter_ms: 0,
    };
    world.backend.create_quota_policy(one_at_once).await.unwrap();
    let policy = ExecutionPolicy { quota_policy_ids: vec![quota_policy_id], ..ExecutionPolicy::default() };
    let (first, handle) = world.claim_one_with(&policy).await;
    let second = world.create_with(&policy).await;
    assert_eq!(world.claim().await, None);

    let parked = park_with(&world, first, handle, ask(&world)).await;
    world.run_due().await;
    let other = world.claim().await.expect("the slot is free");
    assert_eq!(world.state(second).await, PublicState::Active);

    deliver(&world, parked.signal("go")).await;
    assert_eq!(world.claim().await, None, "the resumed execution needs a slot again");
    world.backend.complete(&other, None).await.unwrap();
    world.run_due().await;
    world.claim().await.expect("and gets one");
    assert_eq!(world.state(first).await, PublicState::Active);
}

/// Puts an edge in force between two members of a flow.
async fn depend(world: &World, flow: FlowId, upstream: ExecutionId, downstream: ExecutionId) {
    let edge_id = EdgeId::from_uuid(world.uuid());
    let revision = world.backend.describe_flow(flow).await.unwrap().expect("the flow exists").graph_revision;
    let stage = StageDependencyEdgeArgs {
        flow_id: flow,
        edge_id,
        upstream_execution_id: upstream,
        downstream_execution_id: downstream,
        dependency_kind: "success_only".into(),
        data_passing_ref: None,
        expected_graph_revision: revision,
    };
    world.backend.stage_dependency_edge(stage).await.unwrap();
    let apply = ApplyDependencyToChildArgs {
        flow_id: flow,
        edge_id,
        upstream_execution_id: upstream,
        downstream_execution_id: downstream,
    };
    world.backend.apply_dependency_to_child(apply).await.unwrap();
}

/// A suspended member that depends on another one since it was suspended.
async fn parked_behind(world: &World) -> Parked {
    seed(world).await;
    let flow = kit::flow(world).await;
    let upstream = kit::member(world, flow, "up").await;
    let downstream = kit::member(world, flow, "down").await;
    let handle = kit::claim_now(world, "down").await;
    let parked = park_with(world, downstream, handle, ask(world)).await;
    depend(world, flow, upstream, downstream).await;
    assert_eq!(world.state(downstream).await, PublicState::Suspended, "it is suspended already");
    parked
}

async fn dependencies_applied_while_suspended_hold_the_resumed_execution(world: World) {
    let parked = parked_behind(&world).await;
    deliver(&world, parked.signal("go")).await;
    assert_eq!(world.state(parked.id).await, PublicState::WaitingChildren);
    assert_eq!(kit::claim(&world, "down").await, None);
    kit::complete(&world, "up").await;
    world.run_due().await;
    kit::claim_now(&world, "down").await;
    assert_eq!(observed(&world, &parked.handle).await, ["go"]);
}

async fn a_resume_delay_goes_on_behind_dependencies(world: World) {
    let parked = parked_behind(&world).await;
    let mut signal = parked.signal("go");
    signal.resume_delay_ms = Some(5000);
    deliver(&world, signal).await;
    assert_eq!(world.state(parked.id).await, PublicState::WaitingChildren);
    world.pass(1000).await;
    kit::complete(&world, "up").await;
    world.run_due().await;
    assert_eq!(world.state(parked.id).await, PublicState::Delayed);
    world.pass(4000).await;
    kit::claim_now(&world, "down").await;
}
