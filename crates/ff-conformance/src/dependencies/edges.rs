//! Adding edges to a graph, and showing them.

use ff_core::backend::dependencies::{
    DependencyKind, EdgeDirection, EdgeSnapshot, StageDependencyEdgeArgs, StageDependencyEdgeResult,
};
use ff_core::backend::flows::{CancelFlowPolicy, CancelFlowWait, FlowEdge};
use ff_core::error::{ConflictKind, Entity, StateKind, ValidationKind};
use ff_core::ids::{EdgeId, ExecutionId, FlowId};
use ff_core::state::{EdgeState, PublicState};

use super::kit::{Edge, staged};
use crate::flows::kit as flows;
use crate::{World, cases, expect};

cases!["dependencies":
    a_staged_edge_is_part_of_the_graph_and_holds_nobody_back,
    an_edge_keeps_its_kind_and_the_name_of_its_data,
    refused_edges_are_explained_in_order,
    an_edge_id_is_used_once,
    an_edge_that_closes_a_cycle_is_refused,
    a_search_that_grows_too_large_counts_as_a_cycle,
    a_stale_revision_writes_nothing,
    an_execution_of_another_partition_is_no_member,
    edges_are_listed_by_direction,
    an_edge_of_another_flow_is_not_shown,
];

async fn a_staged_edge_is_part_of_the_graph_and_holds_nobody_back(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    world.advance(5);
    let edge = Edge::new(&world, flow, a, b);
    let answer = edge.stage(&world).await.unwrap();
    assert_eq!(answer, StageDependencyEdgeResult::Staged { edge_id: edge.id, new_graph_revision: 3 });
    let described = world.backend.describe_flow(flow).await.unwrap().unwrap();
    assert_eq!((described.edge_count, described.graph_revision, described.last_mutation_at), (1, 3, world.now()));
    let expected = EdgeSnapshot {
        edge_id: edge.id,
        flow_id: flow,
        upstream_execution_id: a,
        downstream_execution_id: b,
        dependency_kind: DependencyKind::SuccessOnly,
        data_passing_ref: None,
        edge_state: EdgeState::Staged,
        created_at: world.now(),
    };
    assert_eq!(world.backend.describe_edge(flow, edge.id).await.unwrap(), Some(expected));
    assert_eq!(world.state(b).await, PublicState::Waiting);
}

async fn an_edge_keeps_its_kind_and_the_name_of_its_data(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = Edge::new(&world, flow, a, b);
    let args = StageDependencyEdgeArgs {
        dependency_kind: "finished".to_owned(),
        data_passing_ref: Some("report".to_owned()),
        ..edge.at(2)
    };
    world.backend.stage_dependency_edge(args).await.unwrap();
    let found = world.backend.describe_edge(flow, edge.id).await.unwrap().unwrap();
    assert_eq!(found.dependency_kind, DependencyKind::Finished);
    assert_eq!(found.data_passing_ref.as_deref(), Some("report"));
}

async fn refused_edges_are_explained_in_order(world: World) {
    let stage = async |args| world.backend.stage_dependency_edge(args).await;
    let missing = FlowId::from_uuid(world.uuid());
    let (x, y) = (world.member_id(missing), world.member_id(missing));
    let unknown_kind =
        StageDependencyEdgeArgs { dependency_kind: "maybe".to_owned(), ..Edge::new(&world, missing, x, x).at(0) };
    expect::invalid(stage(unknown_kind).await, ValidationKind::InvalidInput);
    let bad_name = StageDependencyEdgeArgs {
        data_passing_ref: Some("\u{7}".to_owned()),
        ..Edge::new(&world, missing, x, x).at(0)
    };
    expect::invalid(stage(bad_name).await, ValidationKind::InvalidInput);
    expect::conflict(stage(Edge::new(&world, missing, x, x).at(0)).await, "self_referencing_edge");
    expect::not_found(stage(Edge::new(&world, missing, x, y).at(0)).await, Entity::Flow);

    let flow = flows::flow(&world).await;
    let a = flows::member(&world, flow, "a").await;
    let stranger = flows::beside(&world, flow, "stranger").await;
    expect::contention(stage(Edge::new(&world, flow, a, stranger).at(7)).await, "stale_graph_revision");
    expect::state(stage(Edge::new(&world, flow, a, stranger).at(1)).await, StateKind::ExecutionNotInFlow);
    expect::state(stage(Edge::new(&world, flow, stranger, a).at(1)).await, StateKind::ExecutionNotInFlow);
    let absent = world.member_id(flow);
    expect::state(stage(Edge::new(&world, flow, a, absent).at(1)).await, StateKind::ExecutionNotInFlow);

    let policy = CancelFlowPolicy::FlowOnly;
    world.backend.cancel_flow(flow, policy, CancelFlowWait::NoWait {}).await.unwrap();
    expect::state(stage(Edge::new(&world, flow, a, stranger).at(7)).await, StateKind::FlowAlreadyTerminal);
}

async fn an_edge_id_is_used_once(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = staged(&world, flow, a, b).await;
    // A caller whose reply was lost recognises its own write.
    let kind = expect::conflict(edge.stage(&world).await, "dependency_already_exists");
    let ConflictKind::DependencyAlreadyExists { existing } = kind else { panic!("{kind:?}") };
    assert_eq!(Some(*existing), world.backend.describe_edge(flow, edge.id).await.unwrap());
    assert_eq!(flows::revision(&world, flow).await, 3);
    // A cycle is reported first.
    let back = Edge { from: b, to: a, ..edge };
    expect::conflict(back.stage(&world).await, "cycle_detected");
}

async fn an_edge_that_closes_a_cycle_is_refused(world: World) {
    let flow = flows::flow(&world).await;
    let mut members = Vec::new();
    for name in ["a", "b", "c", "d"] {
        members.push(flows::member(&world, flow, name).await);
    }
    for pair in members.windows(2) {
        staged(&world, flow, pair[0], pair[1]).await;
    }
    let closing = Edge::new(&world, flow, members[3], members[0]);
    expect::conflict(closing.stage(&world).await, "cycle_detected");
    assert_eq!(world.backend.describe_edge(flow, closing.id).await.unwrap(), None);
    staged(&world, flow, members[0], members[3]).await;
}

async fn a_search_that_grows_too_large_counts_as_a_cycle(world: World) {
    let many: Vec<_> =
        (0..1000).map(|n| ff_core::backend::flows::FlowNode { name: format!("n{n}"), ..flows::node("bulk") }).collect();
    let fan: Vec<FlowEdge> = (1..1000).map(|n| flows::edge("n0", &format!("n{n}"))).collect();
    let graph = flows::submit(&world, many, fan).await;
    let extra = flows::member(&world, graph.flow, "extra").await;
    let last = flows::member(&world, graph.flow, "last").await;
    // The root and the 999 below it can be searched, one more cannot.
    staged(&world, graph.flow, extra, graph.id("n0")).await;
    staged(&world, graph.flow, graph.id("n1"), last).await;
    let innocent = Edge::new(&world, graph.flow, extra, graph.id("n0"));
    expect::conflict(innocent.stage(&world).await, "cycle_detected");
}

async fn a_stale_revision_writes_nothing(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = Edge::new(&world, flow, a, b);
    for revision in [0, 1, 3] {
        expect::contention(world.backend.stage_dependency_edge(edge.at(revision)).await, "stale_graph_revision");
    }
    assert_eq!(world.backend.describe_edge(flow, edge.id).await.unwrap(), None);
    assert_eq!(flows::revision(&world, flow).await, 2);
}

async fn an_execution_of_another_partition_is_no_member(world: World) {
    let flow = flows::flow(&world).await;
    let a = flows::member(&world, flow, "a").await;
    let far = ExecutionId::new((a.partition().index() + 1) % 256, world.uuid());
    expect::state(Edge::new(&world, flow, a, far).stage(&world).await, StateKind::ExecutionNotInFlow);
    expect::state(Edge::new(&world, flow, far, a).stage(&world).await, StateKind::ExecutionNotInFlow);
}

async fn edges_are_listed_by_direction(world: World) {
    let graph =
        flows::submit(&world, flows::nodes(&["a", "b", "c"]), flows::edges(&[("a", "b"), ("a", "c"), ("b", "c")]))
            .await;
    let ends = async |direction: EdgeDirection| {
        let found = world.backend.list_edges(graph.flow, direction).await.unwrap();
        let mut ends: Vec<_> =
            found.into_iter().map(|edge| (edge.upstream_execution_id, edge.downstream_execution_id)).collect();
        ends.sort_unstable();
        ends
    };
    let (a, b, c) = (graph.id("a"), graph.id("b"), graph.id("c"));
    let sorted = |mut ends: Vec<(ExecutionId, ExecutionId)>| {
        ends.sort_unstable();
        ends
    };
    assert_eq!(ends(EdgeDirection::Outgoing { from_node: a }).await, sorted(vec![(a, b), (a, c)]));
    assert_eq!(ends(EdgeDirection::Incoming { to_node: c }).await, sorted(vec![(a, c), (b, c)]));
    assert_eq!(ends(EdgeDirection::Outgoing { from_node: c }).await, []);
    let missing = FlowId::from_uuid(world.uuid());
    let none = world.backend.list_edges(missing, EdgeDirection::Outgoing { from_node: a }).await.unwrap();
    assert_eq!(none, []);
}

async fn an_edge_of_another_flow_is_not_shown(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = staged(&world, flow, a, b).await;
    let other = flows::flow(&world).await;
    assert_eq!(world.backend.describe_edge(other, edge.id).await.unwrap(), None);
    assert_eq!(world.backend.describe_edge(flow, EdgeId::from_uuid(world.uuid())).await.unwrap(), None);
}
