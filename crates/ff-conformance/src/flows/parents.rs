//! What spawned children mean to a parent that does something else than waiting for them.

use ff_core::Blob;
use ff_core::backend::attempts::FailureReason;
use ff_core::backend::dependencies::FlowEligibility;
use ff_core::backend::flows::SpawnChild;
use ff_core::backend::maintenance::TrimRetentionArgs;
use ff_core::backend::subscriptions::ScannerFilter;
use ff_core::backend::suspension::{ResumeExecutionArgs, ResumeTrigger};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, LaneId};
use ff_core::partition::PartitionKey;
use ff_core::rules::retry::FailureClass;
use ff_core::state::PublicState;

use super::kit;
use crate::attempts::owner::retrying;
use crate::cases;
use crate::dependencies::kit::applied_as;
use crate::stage::{replay, suspend};
use crate::world::World;

cases!["flows":
    children_do_not_hold_a_parent_that_sleeps,
    children_do_not_hold_a_parent_that_is_given_back,
    children_do_not_hold_a_parent_that_is_tried_again,
    children_do_not_hold_a_parent_that_is_resumed,
    children_do_not_hold_a_parent_that_is_replayed,
    a_parent_that_slept_can_wait_for_its_children,
    a_dependency_beside_children_holds_a_parent_that_sleeps,
    a_parent_that_waits_for_its_children_waits_for_dependencies_beside_them,
    a_child_that_ended_is_kept_while_its_parent_lives,
    retention_comes_back_to_a_child_it_kept,
    a_child_that_runs_again_is_waited_for_again,
    a_child_that_runs_again_joins_a_wait_that_goes_on,
    a_child_of_an_earlier_life_that_runs_again_is_nothing_to_its_parent,
    a_child_that_runs_again_leaves_a_parent_alone_that_is_over,
];

const HOUR_MS: u64 = 60 * 60 * 1000;

/// A running parent with a child on a lane of each name.
async fn parent_of(world: &World, names: &[&str]) -> (ExecutionId, Handle, Vec<ExecutionId>) {
    let (parent, handle) = world.claim_one_with(&retrying(1)).await;
    let ids = spawn(world, &handle, names).await;
    (parent, handle, ids)
}

async fn spawn(world: &World, handle: &Handle, names: &[&str]) -> Vec<ExecutionId> {
    let on_lane = |name: &&str| SpawnChild {
        lane_id: Some(LaneId::new(*name).unwrap()),
        ..SpawnChild::new(*name, "step", *name)
    };
    world.backend.spawn_children(handle, names.iter().map(on_lane).collect()).await.unwrap()
}

/// The parent can run now, though its child does not.
async fn goes_on(world: &World, parent: ExecutionId, child: ExecutionId) {
    assert_eq!(world.state(child).await, PublicState::Waiting);
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    assert_eq!(world.backend.evaluate_flow_eligibility(parent).await.unwrap(), FlowEligibility::Eligible);
    assert!(world.claim().await.is_some(), "the parent is claimable");
}

async fn children_do_not_hold_a_parent_that_sleeps(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    world.backend.delay(&handle, world.now().plus(1_000)).await.unwrap();
    world.pass(1_000).await;
    goes_on(&world, parent, ids[0]).await;
}

async fn children_do_not_hold_a_parent_that_is_given_back(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    world.backend.delay(&handle, world.now()).await.unwrap();
    world.run_due().await;
    goes_on(&world, parent, ids[0]).await;
}

async fn children_do_not_hold_a_parent_that_is_tried_again(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    world.backend.fail(&handle, FailureReason::new("again"), FailureClass::Transient).await.unwrap();
    world.pass(1_000).await;
    goes_on(&world, parent, ids[0]).await;
}

async fn children_do_not_hold_a_parent_that_is_resumed(world: World) {
    for resume_delay_ms in [0, 1_000] {
        let (parent, handle, ids) = parent_of(&world, &["a"]).await;
        suspend(&world, &handle).await;
        let resume = ResumeExecutionArgs::new(parent, ResumeTrigger::Operator);
        world.backend.resume_execution(ResumeExecutionArgs { resume_delay_ms, ..resume }).await.unwrap();
        world.pass(resume_delay_ms).await;
        goes_on(&world, parent, ids[0]).await;
    }
}

async fn children_do_not_hold_a_parent_that_is_replayed(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    world.backend.complete(&handle, None).await.unwrap();
    replay(&world, parent).await;
    goes_on(&world, parent, ids[0]).await;
}

async fn a_parent_that_slept_can_wait_for_its_children(world: World) {
    let (parent, handle, _) = parent_of(&world, &["a", "b"]).await;
    world.backend.delay(&handle, world.now().plus(1_000)).await.unwrap();
    kit::complete(&world, "a").await;
    world.pass(1_000).await;
    let handle = world.claim().await.expect("it slept enough");
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete(&world, "b").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

/// A running member with a child, into which a dependency leads besides.
async fn with_dependency(world: &World) -> (ExecutionId, Handle) {
    let flow = kit::flow(world).await;
    let parent = kit::member(world, flow, "parent").await;
    let other = kit::member(world, flow, "other").await;
    let handle = kit::claim_now(world, "parent").await;
    spawn(world, &handle, &["a"]).await;
    applied_as(world, "success_only", flow, other, parent).await;
    (parent, handle)
}

async fn a_dependency_beside_children_holds_a_parent_that_sleeps(world: World) {
    let (parent, handle) = with_dependency(&world).await;
    world.backend.delay(&handle, world.now().plus(1_000)).await.unwrap();
    world.pass(1_000).await;
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete(&world, "other").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    let handle = kit::claim_now(&world, "parent").await;
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn a_parent_that_waits_for_its_children_waits_for_dependencies_beside_them(world: World) {
    for order in [["other", "a"], ["a", "other"]] {
        let (parent, handle) = with_dependency(&world).await;
        world.backend.wait_children(&handle).await.unwrap();
        kit::complete(&world, order[0]).await;
        assert_eq!(world.state(parent).await, PublicState::WaitingChildren, "{order:?}");
        kit::complete(&world, order[1]).await;
        assert_eq!(world.state(parent).await, PublicState::Waiting, "{order:?}");
        kit::complete(&world, "parent").await;
    }
}

fn trim_args(world: &World, id: ExecutionId, lane: &str) -> TrimRetentionArgs {
    TrimRetentionArgs {
        partition: PartitionKey::from(id.partition()),
        namespace: None,
        lane_id: LaneId::new(lane).unwrap(),
        retention_ms: 0,
        now: world.now(),
        batch_size: 20,
        filter: ScannerFilter::default(),
    }
}

async fn exists(world: &World, id: ExecutionId) -> bool {
    world.backend.describe_execution(id).await.unwrap().is_some()
}

async fn a_child_that_ended_is_kept_while_its_parent_lives(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    kit::complete(&world, "a").await;
    world.advance(1);
    assert_eq!(world.backend.trim_retention(trim_args(&world, ids[0], "a")).await.unwrap(), 0);
    assert_eq!(spawn(&world, &handle, &["a"]).await, ids);
    assert!(world.backend.await_outcome(ids[0], 0).await.unwrap().is_some(), "its outcome is there");
    kit::cancel(&world, parent).await;
    assert_eq!(world.backend.trim_retention(trim_args(&world, ids[0], "a")).await.unwrap(), 1);
    assert!(!exists(&world, ids[0]).await);
}

async fn retention_comes_back_to_a_child_it_kept(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    kit::complete(&world, "a").await;
    world.backend.delay(&handle, world.now().plus(1_000 * HOUR_MS)).await.unwrap();
    world.pass(24 * HOUR_MS).await;
    assert!(exists(&world, ids[0]).await);
    assert_eq!(world.run_due().await, 0, "it is left alone for some time");
    kit::cancel(&world, parent).await;
    world.pass(6 * HOUR_MS - 1).await;
    assert!(exists(&world, ids[0]).await, "it has waited a day, so it is looked at again after a quarter of one");
    world.pass(1).await;
    assert!(!exists(&world, ids[0]).await && exists(&world, parent).await);
}

async fn a_child_that_runs_again_is_waited_for_again(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::fail(&world, "a").await;
    let handle = world.claim().await.expect("its child is over");
    replay(&world, ids[0]).await;
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete_with(&world, "a", "better").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    let context = world.backend.read_execution_context(parent).await.unwrap();
    assert_eq!(context.inputs.get("a"), Some(&Blob::from("better")));
}

async fn a_child_that_runs_again_joins_a_wait_that_goes_on(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a", "b"]).await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::fail(&world, "a").await;
    replay(&world, ids[0]).await;
    kit::complete(&world, "b").await;
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn a_child_of_an_earlier_life_that_runs_again_is_nothing_to_its_parent(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    kit::complete(&world, "a").await;
    world.backend.complete(&handle, None).await.unwrap();
    replay(&world, parent).await;
    let handle = world.claim().await.expect("replayed");
    replay(&world, ids[0]).await;
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn a_child_that_runs_again_leaves_a_parent_alone_that_is_over(world: World) {
    let (parent, handle, ids) = parent_of(&world, &["a"]).await;
    kit::complete(&world, "a").await;
    world.backend.complete(&handle, None).await.unwrap();
    replay(&world, ids[0]).await;
    kit::complete(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::Completed);
}
