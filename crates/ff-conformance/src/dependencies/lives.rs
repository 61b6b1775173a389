//! Children of an execution that is replayed.

use std::collections::BTreeMap;

use ff_core::Blob;
use ff_core::backend::dependencies::StageDependencyEdgeArgs;
use ff_core::backend::flows::SpawnChild;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FlowId, LaneId};
use ff_core::state::PublicState;

use super::kit::Edge;
use crate::cases;
use crate::flows::kit;
use crate::stage::replay;
use crate::world::World;

cases!["dependencies":
    a_replayed_parent_does_not_wait_for_children_of_an_earlier_life,
    a_parent_that_ended_while_it_waited_for_children_is_replayed_without_them,
    a_replayed_parent_finds_no_results_of_children_of_an_earlier_life,
    a_replayed_parent_still_waits_for_what_is_not_its_child,
    a_replayed_parent_keeps_what_others_handed_over,
];

async fn parent(world: &World) -> (FlowId, ExecutionId, Handle) {
    let flow = kit::flow(world).await;
    let parent = kit::member(world, flow, "parent").await;
    (flow, parent, kit::claim_now(world, "parent").await)
}

async fn spawn(world: &World, handle: &Handle, name: &str) {
    let child = SpawnChild { lane_id: Some(LaneId::new(name).unwrap()), ..SpawnChild::new(name, "step", name) };
    world.backend.spawn_children(handle, vec![child]).await.unwrap();
}

/// Another member, whose end the parent waits for as well.
async fn depend(world: &World, flow: FlowId, parent: ExecutionId, name: &str, handed_over_as: &str) {
    let upstream = kit::member(world, flow, name).await;
    let edge = Edge::new(world, flow, upstream, parent);
    let args = StageDependencyEdgeArgs {
        dependency_kind: "finished".to_owned(),
        data_passing_ref: Some(handed_over_as.to_owned()),
        ..edge.at(kit::revision(world, flow).await)
    };
    world.backend.stage_dependency_edge(args).await.unwrap();
    edge.apply(world).await.unwrap();
}

async fn complete(world: &World, handle: &Handle) {
    world.backend.complete(handle, None).await.unwrap();
}

async fn inputs(world: &World, id: ExecutionId) -> BTreeMap<String, Blob> {
    world.backend.read_execution_context(id).await.unwrap().inputs
}

fn only(name: &str, value: &str) -> BTreeMap<String, Blob> {
    BTreeMap::from([(name.to_owned(), Blob::from(value))])
}

async fn a_replayed_parent_does_not_wait_for_children_of_an_earlier_life(world: World) {
    let (_flow, parent, handle) = parent(&world).await;
    spawn(&world, &handle, "old").await;
    complete(&world, &handle).await;
    replay(&world, parent).await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    let handle = kit::claim_now(&world, "parent").await;
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::Waiting, "it has no children yet");
    let handle = kit::claim_now(&world, "parent").await;
    spawn(&world, &handle, "new").await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::complete(&world, "old").await;
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    kit::complete(&world, "new").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn a_parent_that_ended_while_it_waited_for_children_is_replayed_without_them(world: World) {
    let (_flow, parent, handle) = parent(&world).await;
    spawn(&world, &handle, "old").await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::cancel(&world, parent).await;
    replay(&world, parent).await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    kit::complete_with(&world, "old", "late").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    assert_eq!(inputs(&world, parent).await, BTreeMap::new());
}

async fn a_replayed_parent_finds_no_results_of_children_of_an_earlier_life(world: World) {
    let (_flow, parent, handle) = parent(&world).await;
    spawn(&world, &handle, "first").await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::complete_with(&world, "first", "1").await;
    let handle = kit::claim_now(&world, "parent").await;
    assert_eq!(inputs(&world, parent).await, only("first", "1"));
    spawn(&world, &handle, "second").await;
    complete(&world, &handle).await;
    kit::complete_with(&world, "second", "2").await;
    replay(&world, parent).await;
    assert_eq!(inputs(&world, parent).await, BTreeMap::new());
    let handle = kit::claim_now(&world, "parent").await;
    spawn(&world, &handle, "first").await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::complete_with(&world, "first", "anew").await;
    assert_eq!(inputs(&world, parent).await, only("first", "anew"));
}

async fn a_replayed_parent_still_waits_for_what_is_not_its_child(world: World) {
    let (flow, parent, handle) = parent(&world).await;
    spawn(&world, &handle, "ended").await;
    spawn(&world, &handle, "old").await;
    depend(&world, flow, parent, "other", "other").await;
    kit::complete_with(&world, "ended", "result").await;
    complete(&world, &handle).await;
    for round in 0..2 {
        replay(&world, parent).await;
        assert_eq!(world.state(parent).await, PublicState::WaitingChildren, "replay {round}");
        kit::cancel(&world, parent).await;
    }
    replay(&world, parent).await;
    kit::complete_with(&world, "old", "late").await;
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren, "a child of an earlier life ended");
    kit::complete_with(&world, "other", "result").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    assert_eq!(inputs(&world, parent).await, only("other", "result"));
}

async fn a_replayed_parent_keeps_what_others_handed_over(world: World) {
    let (flow, parent, handle) = parent(&world).await;
    depend(&world, flow, parent, "other", "same").await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::complete_with(&world, "other", "theirs").await;
    let handle = kit::claim_now(&world, "parent").await;
    spawn(&world, &handle, "same").await;
    world.backend.wait_children(&handle).await.unwrap();
    kit::complete_with(&world, "same", "mine").await;
    assert_eq!(inputs(&world, parent).await, only("same", "mine"));
    complete(&world, &kit::claim_now(&world, "parent").await).await;
    replay(&world, parent).await;
    assert_eq!(inputs(&world, parent).await, only("same", "theirs"));
}
