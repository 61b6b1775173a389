//! Children that a member spawns while it runs, and waits for.

use ff_core::backend::dependencies::{FlowEligibility, OnSatisfied, StageDependencyEdgeArgs};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::state::{EdgeGroupState, PublicState};

use super::kit::{Edge, applied_as};
use crate::flows::kit as flows;
use crate::{World, cases};

cases!["dependencies":
    a_parent_wakes_when_its_children_have_ended,
    a_failed_child_does_not_skip_its_parent,
    children_that_ended_before_the_wait_do_not_hold_their_parent,
    each_wait_has_a_group_of_its_own,
    a_group_of_children_is_not_decided_while_the_parent_runs,
    the_results_of_children_reach_their_parent,
    a_required_child_that_failed_shows_as_impossible_before_the_wait,
];

async fn parent(world: &World) -> (FlowId, ExecutionId, Handle) {
    let flow = flows::flow(world).await;
    let parent = flows::member(world, flow, "parent").await;
    (flow, parent, flows::claim_now(world, "parent").await)
}

async fn spawn(world: &World, flow: FlowId, parent: ExecutionId, name: &str) -> ExecutionId {
    let child = flows::member(world, flow, name).await;
    applied_as(world, "finished", flow, child, parent).await;
    child
}

async fn a_parent_wakes_when_its_children_have_ended(world: World) {
    let (flow, parent, handle) = parent(&world).await;
    spawn(&world, flow, parent, "a").await;
    spawn(&world, flow, parent, "b").await;
    assert_eq!(world.state(parent).await, PublicState::Active);
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    let answer = world.backend.evaluate_flow_eligibility(parent).await.unwrap();
    assert_eq!(answer, FlowEligibility::BlockedByDependencies);
    flows::complete(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
    flows::complete(&world, "b").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn a_failed_child_does_not_skip_its_parent(world: World) {
    let (flow, parent, handle) = parent(&world).await;
    spawn(&world, flow, parent, "a").await;
    world.backend.wait_children(&handle).await.unwrap();
    flows::fail(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn children_that_ended_before_the_wait_do_not_hold_their_parent(world: World) {
    let (flow, parent, handle) = parent(&world).await;
    spawn(&world, flow, parent, "a").await;
    flows::complete(&world, "a").await;
    assert_eq!(world.state(parent).await, PublicState::Active);
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn each_wait_has_a_group_of_its_own(world: World) {
    let (flow, parent, handle) = parent(&world).await;
    for (round, name) in ["a", "b"].into_iter().enumerate() {
        let handle = if round == 0 { handle.clone() } else { flows::claim_now(&world, "parent").await };
        spawn(&world, flow, parent, name).await;
        world.backend.wait_children(&handle).await.unwrap();
        assert_eq!(world.state(parent).await, PublicState::WaitingChildren);
        flows::complete(&world, name).await;
        assert_eq!(world.state(parent).await, PublicState::Waiting);
    }
    let groups = flows::groups(&world, flow, parent).await;
    let states: Vec<_> = groups.iter().map(|group| (group.generation, group.group_state)).collect();
    assert_eq!(states, [(0, EdgeGroupState::Satisfied), (1, EdgeGroupState::Satisfied)]);
}

async fn a_group_of_children_is_not_decided_while_the_parent_runs(world: World) {
    let graph = flows::submit(&world, flows::nodes(&["first", "parent"]), flows::edges(&[("first", "parent")])).await;
    flows::complete(&world, "first").await;
    let (flow, parent) = (graph.flow, graph.id("parent"));
    let handle = flows::claim_now(&world, "parent").await;
    let policy = flows::any_of(OnSatisfied::LetRun);
    world.backend.set_edge_group_policy(flow, parent, policy).await.unwrap();
    spawn(&world, flow, parent, "a").await;
    spawn(&world, flow, parent, "b").await;
    flows::complete(&world, "a").await;
    assert_eq!(flows::groups(&world, flow, parent).await[1].group_state, EdgeGroupState::Pending);
    world.backend.wait_children(&handle).await.unwrap();
    assert_eq!(world.state(parent).await, PublicState::Waiting);
    assert_eq!(flows::groups(&world, flow, parent).await[1].group_state, EdgeGroupState::Satisfied);
    flows::complete(&world, "b").await;
    assert_eq!(world.state(parent).await, PublicState::Waiting);
}

async fn a_required_child_that_failed_shows_as_impossible_before_the_wait(world: World) {
    let graph = flows::submit(&world, flows::nodes(&["first", "parent"]), flows::edges(&[("first", "parent")])).await;
    flows::complete(&world, "first").await;
    let (flow, parent) = (graph.flow, graph.id("parent"));
    let handle = flows::claim_now(&world, "parent").await;
    let child = flows::member(&world, flow, "child").await;
    applied_as(&world, "success_only", flow, child, parent).await;
    flows::fail(&world, "child").await;
    assert_eq!(world.state(parent).await, PublicState::Active);
    world.backend.delay(&handle, world.now().plus(1000)).await.unwrap();
    let answer = world.backend.evaluate_flow_eligibility(parent).await.unwrap();
    assert_eq!(answer, FlowEligibility::Impossible);
}

async fn the_results_of_children_reach_their_parent(world: World) {
    let (flow, parent, handle) = parent(&world).await;
    for name in ["a", "b"] {
        let child = flows::member(&world, flow, name).await;
        let edge = Edge::new(&world, flow, child, parent);
        let args = StageDependencyEdgeArgs {
            dependency_kind: "finished".to_owned(),
            data_passing_ref: Some(name.to_owned()),
            ..edge.at(flows::revision(&world, flow).await)
        };
        world.backend.stage_dependency_edge(args).await.unwrap();
        edge.apply(&world).await.unwrap();
    }
    flows::complete_with(&world, "a", "from a").await;
    world.backend.wait_children(&handle).await.unwrap();
    flows::complete_with(&world, "b", "from b").await;
    let context = world.backend.read_execution_context(parent).await.unwrap();
    let inputs: Vec<_> = context.inputs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    assert_eq!(inputs, [("a", "from a".into()), ("b", "from b".into())]);
}
