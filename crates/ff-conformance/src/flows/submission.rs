//! Whole graphs in one call.

use std::collections::BTreeMap;

use ff_core::backend::dependencies::{DependencyKind, EdgeDirection, OnSatisfied};
use ff_core::backend::flows::{FlowEdge, FlowNode, SUBMIT_NODES_MAX, SubmitFlowArgs, SubmitFlowResult};
use ff_core::backend::ingress::SetLaneStateArgs;
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::{FlowId, LaneId, Namespace};
use ff_core::policy::PolicyDocument;
use ff_core::state::{EdgeState, FlowState, LaneState, PublicState};
use ff_core::{Blob, Result};
use serde_json::json;

use super::kit::{self, edge, edges, node, nodes};
use crate::{World, cases, expect};

cases!["flows":
    a_diamond_runs_from_its_top_to_its_bottom,
    a_submitted_graph_is_complete_at_once,
    a_graph_may_be_empty,
    the_same_key_finds_the_first_submission,
    a_key_belongs_to_its_namespace,
    an_empty_key_is_no_key,
    an_id_and_a_key_exclude_each_other,
    the_same_flow_id_is_submitted_once,
    a_submission_does_not_touch_a_flow_that_exists,
    a_graph_with_bad_names_or_joins_is_refused,
    a_graph_that_is_too_large_is_refused,
    a_graph_of_a_thousand_members_is_one_commit,
    a_graph_with_a_cycle_is_refused,
    whatever_creating_a_member_refuses_refuses_the_graph,
    a_refused_graph_leaves_no_trace,
    a_delayed_member_keeps_its_delay_behind_its_dependencies,
    members_carry_what_their_nodes_say,
];

async fn a_diamond_runs_from_its_top_to_its_bottom(world: World) {
    use PublicState::{Completed, Waiting, WaitingChildren};
    let names = ["top", "left", "right", "bottom"];
    let pairs = [("top", "left"), ("top", "right"), ("left", "bottom"), ("right", "bottom")];
    let diamond = kit::submit(&world, nodes(&names), edges(&pairs)).await;
    assert_eq!(
        kit::states(&world, &diamond, &names).await,
        [Waiting, WaitingChildren, WaitingChildren, WaitingChildren]
    );
    assert!(kit::claim(&world, "left").await.is_none());

    kit::complete(&world, "top").await;
    assert_eq!(kit::states(&world, &diamond, &names).await, [Completed, Waiting, Waiting, WaitingChildren]);
    kit::complete(&world, "left").await;
    assert_eq!(world.state(diamond.id("bottom")).await, WaitingChildren);
    kit::complete(&world, "right").await;
    assert_eq!(world.state(diamond.id("bottom")).await, Waiting);
    kit::complete(&world, "bottom").await;
    assert_eq!(kit::states(&world, &diamond, &names).await, [Completed; 4]);
}

async fn a_submitted_graph_is_complete_at_once(world: World) {
    let any_of = kit::any_of(OnSatisfied::LetRun);
    let nodes = vec![node("a"), node("b"), kit::joined("c", any_of)];
    let args = SubmitFlowArgs {
        tags: BTreeMap::from([("team.name".to_owned(), "blue".to_owned())]),
        ..kit::graph(&world, nodes, edges(&[("a", "c"), ("b", "c")]))
    };
    let SubmitFlowResult::Submitted { flow_id, executions } = world.backend.submit_flow(args).await.unwrap() else {
        panic!("expected a new flow");
    };
    let flow = world.backend.describe_flow(flow_id).await.unwrap().unwrap();
    assert_eq!((flow.node_count, flow.edge_count, flow.graph_revision), (3, 2, 5));
    assert_eq!(flow.public_flow_state, FlowState::Open);
    assert_eq!(flow.tags["team.name"], "blue");
    assert_eq!(flow.created_at, world.now());
    let group = kit::group(&world, flow_id, executions["c"]).await;
    assert_eq!((group.policy, group.generation, group.total_deps, group.running_count), (any_of, 0, 2, 2));
    let into = EdgeDirection::Incoming { to_node: executions["c"] };
    let found = world.backend.list_edges(flow_id, into).await.unwrap();
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|edge| edge.edge_state == EdgeState::Unsatisfied));
    for id in executions.values() {
        assert_eq!(world.backend.resolve_execution_flow_id(*id).await.unwrap(), Some(flow_id));
    }
}

async fn a_graph_may_be_empty(world: World) {
    let empty = kit::submit(&world, Vec::new(), Vec::new()).await;
    assert!(empty.members.is_empty());
    assert_eq!(kit::revision(&world, empty.flow).await, 0);
}

fn keyed(world: &World, key: &str) -> SubmitFlowArgs {
    SubmitFlowArgs { idempotency_key: Some(key.to_owned()), ..kit::graph(world, nodes(&["a"]), Vec::new()) }
}

fn id_of(answer: Result<SubmitFlowResult>) -> FlowId {
    match answer.unwrap() {
        SubmitFlowResult::Submitted { flow_id, .. } => flow_id,
        other @ SubmitFlowResult::Duplicate { .. } => panic!("expected a new flow, got {other:?}"),
    }
}

async fn an_id_and_a_key_exclude_each_other(world: World) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let args = SubmitFlowArgs { flow_id: Some(flow_id), ..keyed(&world, "order-1") };
    expect::invalid(world.backend.submit_flow(args).await, ValidationKind::InvalidInput);
    assert_eq!(world.backend.describe_flow(flow_id).await.unwrap(), None);
}

async fn the_same_key_finds_the_first_submission(world: World) {
    let flow_id = id_of(world.backend.submit_flow(keyed(&world, "order-1")).await);
    let repeat = world.backend.submit_flow(keyed(&world, "order-1")).await.unwrap();
    assert_eq!(repeat, SubmitFlowResult::Duplicate { flow_id });
    // Even when the rest differs or makes no sense.
    let other = SubmitFlowArgs { edges: edges(&[("x", "y")]), ..keyed(&world, "order-1") };
    assert_eq!(world.backend.submit_flow(other).await.unwrap(), SubmitFlowResult::Duplicate { flow_id });
    assert_ne!(id_of(world.backend.submit_flow(keyed(&world, "order-2")).await), flow_id);
    let flow = world.backend.describe_flow(flow_id).await.unwrap().unwrap();
    assert_eq!(flow.node_count, 1);
}

async fn a_key_belongs_to_its_namespace(world: World) {
    let here = id_of(world.backend.submit_flow(keyed(&world, "order-1")).await);
    let elsewhere = SubmitFlowArgs { namespace: Namespace::new("elsewhere").unwrap(), ..keyed(&world, "order-1") };
    assert_ne!(id_of(world.backend.submit_flow(elsewhere).await), here);
}

async fn an_empty_key_is_no_key(world: World) {
    let first = id_of(world.backend.submit_flow(keyed(&world, "")).await);
    assert_ne!(id_of(world.backend.submit_flow(keyed(&world, "")).await), first);
    let bad = world.backend.submit_flow(keyed(&world, "a\nb")).await;
    expect::invalid(bad, ValidationKind::InvalidInput);
}

async fn the_same_flow_id_is_submitted_once(world: World) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let args = || SubmitFlowArgs { flow_id: Some(flow_id), ..kit::graph(&world, nodes(&["a"]), Vec::new()) };
    assert_eq!(id_of(world.backend.submit_flow(args()).await), flow_id);
    assert_eq!(world.backend.submit_flow(args()).await.unwrap(), SubmitFlowResult::Duplicate { flow_id });
}

async fn a_submission_does_not_touch_a_flow_that_exists(world: World) {
    let flow_id = kit::flow(&world).await;
    let args = SubmitFlowArgs { flow_id: Some(flow_id), ..kit::graph(&world, nodes(&["a"]), Vec::new()) };
    assert_eq!(world.backend.submit_flow(args).await.unwrap(), SubmitFlowResult::Duplicate { flow_id });
    assert_eq!(kit::revision(&world, flow_id).await, 0);
}

async fn a_graph_with_bad_names_or_joins_is_refused(world: World) {
    let any_of = kit::any_of(OnSatisfied::LetRun);
    let none = kit::quorum(0, OnSatisfied::LetRun);
    let named = |name: &str| FlowNode { name: name.to_owned(), ..node("a") };
    let data = |name: &str| FlowEdge { data_passing_ref: Some(name.to_owned()), ..edge("a", "b") };
    let graphs = [
        kit::graph(&world, nodes(&["a", "a"]), Vec::new()),
        kit::graph(&world, vec![named("")], Vec::new()),
        kit::graph(&world, vec![named("a\u{1}")], Vec::new()),
        kit::graph(&world, nodes(&["a"]), edges(&[("a", "nobody")])),
        kit::graph(&world, nodes(&["a", "b"]), vec![data("\u{7}")]),
        kit::graph(&world, vec![kit::joined("a", any_of)], Vec::new()),
        kit::graph(&world, vec![node("a"), kit::joined("b", none)], edges(&[("a", "b")])),
        SubmitFlowArgs { flow_kind: String::new(), ..kit::graph(&world, nodes(&["a"]), Vec::new()) },
    ];
    for args in graphs {
        expect::invalid(world.backend.submit_flow(args).await, ValidationKind::InvalidInput);
    }
}

fn many(count: usize) -> Vec<FlowNode> {
    (0..count).map(|n| FlowNode { name: format!("n{n}"), ..node("bulk") }).collect()
}

async fn a_graph_that_is_too_large_is_refused(world: World) {
    let too_many_nodes = kit::graph(&world, many(SUBMIT_NODES_MAX + 1), Vec::new());
    expect::invalid(world.backend.submit_flow(too_many_nodes).await, ValidationKind::InvalidInput);
    let too_many_edges = (0..10_001).map(|_| edge("n0", "n1")).collect();
    let args = kit::graph(&world, many(2), too_many_edges);
    expect::invalid(world.backend.submit_flow(args).await, ValidationKind::InvalidInput);
}

async fn a_graph_of_a_thousand_members_is_one_commit(world: World) {
    let chain = (1..SUBMIT_NODES_MAX).map(|n| edge("n0", &format!("n{n}"))).collect();
    let graph = kit::submit(&world, many(SUBMIT_NODES_MAX), chain).await;
    assert_eq!(graph.members.len(), SUBMIT_NODES_MAX);
    let flow = world.backend.describe_flow(graph.flow).await.unwrap().unwrap();
    assert_eq!((flow.node_count, flow.edge_count), (1000, 999));
    assert_eq!(flow.edge_groups.len(), 999);
    assert_eq!(world.state(graph.id("n0")).await, PublicState::Waiting);
    assert_eq!(world.state(graph.id("n999")).await, PublicState::WaitingChildren);
}

async fn a_graph_with_a_cycle_is_refused(world: World) {
    let selfish = kit::graph(&world, nodes(&["a"]), edges(&[("a", "a")]));
    expect::conflict(world.backend.submit_flow(selfish).await, "self_referencing_edge");
    let round = kit::graph(&world, nodes(&["a", "b", "c"]), edges(&[("a", "b"), ("b", "c"), ("c", "a")]));
    expect::conflict(world.backend.submit_flow(round).await, "cycle_detected");
}

async fn whatever_creating_a_member_refuses_refuses_the_graph(world: World) {
    let policy = |json: serde_json::Value| FlowNode {
        policy: Some(serde_json::from_value::<PolicyDocument>(json).unwrap()),
        ..node("a")
    };
    let submit = async |node: FlowNode| world.backend.submit_flow(kit::graph(&world, vec![node], Vec::new())).await;
    let tagged = FlowNode { tags: BTreeMap::from([("bad".to_owned(), "1".to_owned())]), ..node("a") };
    expect::invalid(submit(tagged).await, ValidationKind::InvalidTagKey);
    let bad = policy(json!({"max_replay_count": "many"}));
    expect::invalid(submit(bad).await, ValidationKind::InvalidPolicyJson);
    let bad = policy(json!({"routing_requirements": {"required_capabilities": ["a,b"]}}));
    expect::invalid(submit(bad).await, ValidationKind::InvalidCapabilities);
    let large = FlowNode { input_payload: Blob::from(vec![0; (1 << 20) + 1]), ..node("a") };
    expect::invalid(submit(large).await, ValidationKind::PayloadTooLarge);
    let flow_tags = SubmitFlowArgs {
        tags: BTreeMap::from([("bad".to_owned(), "1".to_owned())]),
        ..kit::graph(&world, nodes(&["a"]), Vec::new())
    };
    expect::invalid(world.backend.submit_flow(flow_tags).await, ValidationKind::InvalidTagKey);

    let closed = SetLaneStateArgs {
        namespace: world.namespace(),
        lane_id: LaneId::new("closed").unwrap(),
        state: LaneState::Draining,
        reason: String::new(),
    };
    world.backend.set_lane_state(closed).await.unwrap();
    expect::state(submit(node("closed")).await, StateKind::LaneClosed);
}

async fn a_refused_graph_leaves_no_trace(world: World) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let bad = FlowNode { tags: BTreeMap::from([("bad".to_owned(), "1".to_owned())]), ..node("second") };
    let args = SubmitFlowArgs { flow_id: Some(flow_id), ..kit::graph(&world, vec![node("first"), bad], Vec::new()) };
    expect::invalid(world.backend.submit_flow(args).await, ValidationKind::InvalidTagKey);
    assert_eq!(world.backend.describe_flow(flow_id).await.unwrap(), None);
    assert!(kit::claim(&world, "first").await.is_none());
    let lane = world.backend.describe_lane(&world.namespace(), &LaneId::new("first").unwrap()).await.unwrap();
    assert_eq!(lane, None);
}

async fn a_delayed_member_keeps_its_delay_behind_its_dependencies(world: World) {
    let late = FlowNode { delay_until: Some(world.now().plus(10_000)), ..node("late") };
    let graph = kit::submit(&world, vec![node("first"), late], edges(&[("first", "late")])).await;
    assert_eq!(world.state(graph.id("late")).await, PublicState::WaitingChildren);
    kit::complete(&world, "first").await;
    assert_eq!(world.state(graph.id("late")).await, PublicState::Delayed);
    world.pass(10_000).await;
    assert_eq!(world.state(graph.id("late")).await, PublicState::Waiting);
}

async fn members_carry_what_their_nodes_say(world: World) {
    let rich = FlowNode {
        execution_kind: "load".to_owned(),
        input_payload: Blob::from(vec![0, 159, 146, 150]),
        payload_encoding: Some("raw".to_owned()),
        priority: 7,
        tags: BTreeMap::from([("team.name".to_owned(), "blue".to_owned())]),
        execution_deadline_at: Some(world.now().plus(1_000)),
        ..node("rich")
    };
    let finished = FlowEdge { kind: DependencyKind::Finished, ..edge("rich", "after") };
    let graph = kit::submit(&world, vec![rich, node("after")], vec![finished]).await;
    let info = world.backend.read_execution_info(graph.id("rich")).await.unwrap().unwrap();
    assert_eq!((info.execution_kind.as_str(), info.priority), ("load", 7));
    let context = world.backend.read_execution_context(graph.id("rich")).await.unwrap();
    assert_eq!(context.input_payload, Blob::from(vec![0, 159, 146, 150]));
    assert_eq!(context.payload_encoding.as_deref(), Some("raw"));
    assert_eq!(context.tags["team.name"], "blue");
    world.pass(1_000).await;
    assert_eq!(world.state(graph.id("rich")).await, PublicState::Expired);
    assert_eq!(world.state(graph.id("after")).await, PublicState::Waiting);
}
