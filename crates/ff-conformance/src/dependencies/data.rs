//! Results that travel along edges.

use std::collections::BTreeMap;

use ff_core::Blob;
use ff_core::backend::dependencies::{DependencyKind, OnSatisfied};
use ff_core::backend::flows::FlowEdge;

use crate::flows::kit::{self as flows, Graph, edge, node};
use crate::{World, cases};

cases!["dependencies":
    the_only_result_becomes_the_payload,
    several_results_are_handed_on_by_name,
    without_a_result_the_payload_stays,
    without_a_name_nothing_is_handed_on,
    a_late_result_does_not_reach_a_downstream_that_went_on,
    a_downstream_that_is_over_gets_nothing,
    a_failed_upstream_hands_on_nothing,
    data_are_byte_exact,
];

fn data(from: &str, to: &str, name: &str) -> FlowEdge {
    FlowEdge { data_passing_ref: Some(name.to_owned()), ..edge(from, to) }
}

/// What the handler of a member would be given.
async fn given(world: &World, graph: &Graph, name: &str) -> (Blob, BTreeMap<String, Blob>) {
    let context = world.backend.read_execution_context(graph.id(name)).await.unwrap();
    (context.input_payload, context.inputs)
}

fn inputs(pairs: &[(&str, &str)]) -> BTreeMap<String, Blob> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), Blob::from(*value))).collect()
}

async fn the_only_result_becomes_the_payload(world: World) {
    let list = vec![node("a"), node("b"), node("z")];
    let graph = flows::submit(&world, list, vec![data("a", "z", "left"), edge("b", "z")]).await;
    flows::complete_with(&world, "a", "from a").await;
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("z"), inputs(&[])));
    flows::complete_with(&world, "b", "from b").await;
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("from a"), inputs(&[("left", "from a")])));
}

async fn several_results_are_handed_on_by_name(world: World) {
    let list = vec![node("a"), node("b"), node("z")];
    let graph = flows::submit(&world, list, vec![data("a", "z", "left"), data("b", "z", "right")]).await;
    flows::complete_with(&world, "a", "from a").await;
    flows::complete_with(&world, "b", "from b").await;
    let expected = inputs(&[("left", "from a"), ("right", "from b")]);
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("z"), expected));
}

async fn without_a_result_the_payload_stays(world: World) {
    let graph = flows::submit(&world, vec![node("a"), node("z")], vec![data("a", "z", "left")]).await;
    flows::complete(&world, "a").await;
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("z"), inputs(&[])));
}

async fn without_a_name_nothing_is_handed_on(world: World) {
    let graph = flows::submit(&world, vec![node("a"), node("z")], vec![data("a", "z", "")]).await;
    flows::complete_with(&world, "a", "from a").await;
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("z"), inputs(&[])));
}

async fn a_late_result_does_not_reach_a_downstream_that_went_on(world: World) {
    let list = vec![node("a"), node("b"), flows::joined("z", flows::any_of(OnSatisfied::LetRun))];
    let graph = flows::submit(&world, list, vec![data("a", "z", "left"), data("b", "z", "right")]).await;
    flows::complete_with(&world, "a", "from a").await;
    flows::complete_with(&world, "b", "from b").await;
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("z"), inputs(&[("left", "from a")])));
}

async fn a_downstream_that_is_over_gets_nothing(world: World) {
    let graph = flows::submit(&world, vec![node("a"), node("z")], vec![data("a", "z", "left")]).await;
    flows::cancel(&world, graph.id("z")).await;
    flows::complete_with(&world, "a", "from a").await;
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("z"), inputs(&[])));
}

async fn a_failed_upstream_hands_on_nothing(world: World) {
    let finished = FlowEdge { kind: DependencyKind::Finished, ..data("a", "z", "left") };
    let other = FlowEdge { kind: DependencyKind::Finished, ..data("b", "z", "right") };
    let graph = flows::submit(&world, vec![node("a"), node("b"), node("z")], vec![finished, other]).await;
    flows::fail(&world, "a").await;
    flows::complete_with(&world, "b", "from b").await;
    assert_eq!(given(&world, &graph, "z").await, (Blob::from("z"), inputs(&[("right", "from b")])));
}

async fn data_are_byte_exact(world: World) {
    let graph = flows::submit(&world, vec![node("a"), node("z")], vec![data("a", "z", "left")]).await;
    let bytes = Blob::from(vec![0, 255, 128, 10]);
    let handle = flows::claim_now(&world, "a").await;
    world.backend.complete(&handle, Some(bytes.clone())).await.unwrap();
    assert_eq!(given(&world, &graph, "z").await.0, bytes);
}
