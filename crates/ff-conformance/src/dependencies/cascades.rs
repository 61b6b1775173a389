//! What the end of a member means to those who wait for it.

use ff_core::backend::dependencies::{CascadeOutcome, EdgeDirection, OnSatisfied, ResolveDependencyOutcome};
use ff_core::backend::flows::{FlowEdge, FlowNode};
use ff_core::backend::subscriptions::{CompletionOutcome, ScannerFilter};
use ff_core::cursor::EventCursor;
use ff_core::error::ValidationKind;
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::state::{EdgeGroupState, EdgeState, PublicState, TerminalOutcome};
use futures_util::StreamExt;

use super::kit::{Edge, applied, applied_as, staged};
use crate::flows::kit::{self as flows, Graph, edges, node, nodes};
use crate::{Damage, World, cases, expect};

cases!["dependencies":
    a_failure_skips_everything_downstream,
    a_cancelled_or_expired_upstream_skips_like_a_failed_one,
    a_retried_failure_decides_nothing,
    a_finished_edge_is_satisfied_by_any_end,
    any_of_goes_on_with_the_first_success,
    any_of_is_impossible_once_all_have_failed,
    a_quorum_goes_on_with_enough_successes,
    a_quorum_is_impossible_once_too_many_failed,
    a_quorum_larger_than_its_group_is_impossible_at_the_first_end,
    a_decided_group_only_counts,
    a_running_downstream_is_skipped_with_everything_it_holds,
    a_suspended_downstream_is_skipped_too,
    a_huge_fan_out_is_promoted_through_continuations,
    a_huge_fan_out_is_skipped_through_continuations,
    a_long_chain_is_skipped_to_its_end,
    a_damaged_downstream_does_not_keep_its_upstream_from_ending,
    edges_left_to_a_continuation_can_be_settled_by_hand,
    a_settled_edge_is_settled_once,
    refused_resolutions_are_explained,
    a_cascade_can_be_repeated,
    a_cascade_of_many_edges_is_done_when_it_returns,
    a_cascade_without_a_flow_or_an_end_does_nothing,
    every_skipped_member_is_announced_once,
];

async fn a_failure_skips_everything_downstream(world: World) {
    use PublicState::{Failed, Skipped, Waiting};
    let names = ["a", "b", "c", "d", "free"];
    let pairs = [("a", "b"), ("b", "c"), ("a", "d"), ("c", "d")];
    let graph = flows::submit(&world, nodes(&names), edges(&pairs)).await;
    flows::fail(&world, "a").await;
    assert_eq!(flows::states(&world, &graph, &names).await, [Failed, Skipped, Skipped, Skipped, Waiting]);
    let group = flows::group(&world, graph.flow, graph.id("d")).await;
    assert_eq!(group.group_state, EdgeGroupState::Impossible);
    assert_eq!((group.failed_count, group.skipped_count, group.running_count), (1, 1, 0));
    let skipped = world.backend.read_execution_info(graph.id("b")).await.unwrap().unwrap();
    assert_eq!(skipped.completed_at, Some(world.now()));
    assert_eq!(skipped.started_at, None);
}

async fn a_cancelled_or_expired_upstream_skips_like_a_failed_one(world: World) {
    let expiring = FlowNode { execution_deadline_at: Some(world.now().plus(1_000)), ..node("late") };
    let list = vec![node("a"), node("b"), expiring, node("d")];
    let graph = flows::submit(&world, list, edges(&[("a", "b"), ("late", "d")])).await;
    flows::cancel(&world, graph.id("a")).await;
    assert_eq!(world.state(graph.id("b")).await, PublicState::Skipped);
    world.pass(1_000).await;
    assert_eq!(flows::states(&world, &graph, &["late", "d"]).await, [PublicState::Expired, PublicState::Skipped]);
    let group = flows::group(&world, graph.flow, graph.id("d")).await;
    assert_eq!((group.failed_count, group.skipped_count), (1, 0));
}

async fn a_retried_failure_decides_nothing(world: World) {
    use ff_core::backend::attempts::{FailOutcome, FailureReason};
    use ff_core::rules::retry::FailureClass;
    let policy = serde_json::from_value(serde_json::json!({"retry_policy": {"max_retries": 1}})).unwrap();
    let retried = FlowNode { policy: Some(policy), ..node("a") };
    let graph = flows::submit(&world, vec![retried, node("b")], edges(&[("a", "b")])).await;
    let handle = flows::claim_now(&world, "a").await;
    let outcome = world.backend.fail(&handle, FailureReason::new("broken"), FailureClass::Transient).await.unwrap();
    assert!(matches!(outcome, FailOutcome::RetryScheduled { .. }), "{outcome:?}");
    assert_eq!(world.state(graph.id("b")).await, PublicState::WaitingChildren);
    world.pass(60_000).await;
    flows::complete(&world, "a").await;
    assert_eq!(world.state(graph.id("b")).await, PublicState::Waiting);
}

async fn a_finished_edge_is_satisfied_by_any_end(world: World) {
    let flow = flows::flow(&world).await;
    let mut upstreams = Vec::new();
    for name in ["ok", "bad", "gone", "never"] {
        upstreams.push(flows::member(&world, flow, name).await);
    }
    applied(&world, flow, upstreams[1], upstreams[3]).await;
    let last = flows::member(&world, flow, "last").await;
    for upstream in &upstreams {
        applied_as(&world, "finished", flow, *upstream, last).await;
    }
    flows::complete(&world, "ok").await;
    flows::cancel(&world, upstreams[2]).await;
    assert_eq!(world.state(last).await, PublicState::WaitingChildren);
    flows::fail(&world, "bad").await;
    assert_eq!(world.state(upstreams[3]).await, PublicState::Skipped);
    assert_eq!(world.state(last).await, PublicState::Waiting);
    let group = flows::group(&world, flow, last).await;
    assert_eq!((group.satisfied_count, group.failed_count, group.skipped_count), (4, 0, 0));
}

/// Upstreams `a`, `b`, `c` of one downstream `z`.
async fn joined(world: &World, join: ff_core::backend::dependencies::EdgeDependencyPolicy) -> Graph {
    let list = vec![node("a"), node("b"), node("c"), flows::joined("z", join)];
    flows::submit(world, list, edges(&[("a", "z"), ("b", "z"), ("c", "z")])).await
}

async fn any_of_goes_on_with_the_first_success(world: World) {
    let graph = joined(&world, flows::any_of(OnSatisfied::LetRun)).await;
    flows::fail(&world, "a").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::WaitingChildren);
    flows::complete(&world, "b").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::Waiting);
    assert_eq!(flows::group(&world, graph.flow, graph.id("z")).await.group_state, EdgeGroupState::Satisfied);
}

async fn any_of_is_impossible_once_all_have_failed(world: World) {
    let graph = joined(&world, flows::any_of(OnSatisfied::LetRun)).await;
    flows::fail(&world, "a").await;
    flows::fail(&world, "b").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::WaitingChildren);
    flows::cancel(&world, graph.id("c")).await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::Skipped);
}

async fn a_quorum_goes_on_with_enough_successes(world: World) {
    let graph = joined(&world, flows::quorum(2, OnSatisfied::LetRun)).await;
    flows::complete(&world, "a").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::WaitingChildren);
    flows::fail(&world, "b").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::WaitingChildren);
    flows::complete(&world, "c").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::Waiting);
}

async fn a_quorum_is_impossible_once_too_many_failed(world: World) {
    let graph = joined(&world, flows::quorum(2, OnSatisfied::LetRun)).await;
    flows::fail(&world, "a").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::WaitingChildren);
    flows::fail(&world, "b").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::Skipped);
    assert_eq!(world.state(graph.id("c")).await, PublicState::Waiting);
}

async fn a_quorum_larger_than_its_group_is_impossible_at_the_first_end(world: World) {
    let graph = joined(&world, flows::quorum(4, OnSatisfied::LetRun)).await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::WaitingChildren);
    flows::complete(&world, "a").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::Skipped);
}

async fn a_decided_group_only_counts(world: World) {
    let graph = joined(&world, flows::any_of(OnSatisfied::LetRun)).await;
    flows::complete(&world, "a").await;
    let handle = flows::claim_now(&world, "z").await;
    flows::fail(&world, "b").await;
    flows::complete(&world, "c").await;
    assert_eq!(world.state(graph.id("z")).await, PublicState::Active);
    let group = flows::group(&world, graph.flow, graph.id("z")).await;
    assert_eq!((group.satisfied_count, group.failed_count, group.running_count), (2, 1, 0));
    assert_eq!(group.group_state, EdgeGroupState::Satisfied);
    world.backend.complete(&handle, None).await.unwrap();
}

async fn a_running_downstream_is_skipped_with_everything_it_holds(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let handle = flows::claim_now(&world, "b").await;
    applied(&world, flow, a, b).await;
    flows::fail(&world, "a").await;
    let skipped = world.backend.describe_execution(b).await.unwrap().unwrap();
    assert_eq!(skipped.public_state, PublicState::Skipped);
    assert_eq!(skipped.current_lease, None);
    expect::contention(world.backend.complete(&handle, None).await, "execution_not_active");
    expect::contention(world.backend.renew(&handle).await, "execution_not_active");
    world.pass(60_000).await;
    assert_eq!(world.state(b).await, PublicState::Skipped);
}

async fn a_suspended_downstream_is_skipped_too(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let handle = flows::claim_now(&world, "b").await;
    applied(&world, flow, a, b).await;
    world.backend.delay(&handle, world.now().plus(1_000)).await.unwrap();
    flows::fail(&world, "a").await;
    assert_eq!(world.state(b).await, PublicState::Skipped);
    world.pass(1_000).await;
    assert_eq!(world.state(b).await, PublicState::Skipped);
}

/// One upstream `root` and 500 downstreams on one lane.
async fn fan_out(world: &World) -> Graph {
    let children = (0..500).map(|n| FlowNode { name: format!("n{n}"), ..node("bulk") });
    let list = std::iter::once(node("root")).chain(children).collect();
    let fan: Vec<FlowEdge> = (0..500).map(|n| flows::edge("root", &format!("n{n}"))).collect();
    flows::submit(world, list, fan).await
}

async fn count(world: &World, graph: &Graph, state: PublicState) -> usize {
    let mut found = 0;
    for id in graph.members.values() {
        found += usize::from(world.state(*id).await == state);
    }
    found
}

async fn a_huge_fan_out_is_promoted_through_continuations(world: World) {
    let graph = fan_out(&world).await;
    flows::complete(&world, "root").await;
    let first = count(&world, &graph, PublicState::Waiting).await;
    assert!((1..500).contains(&first), "one commit promoted {first} downstreams");
    world.run_due().await;
    assert_eq!(count(&world, &graph, PublicState::Waiting).await, 500);
}

async fn a_huge_fan_out_is_skipped_through_continuations(world: World) {
    let graph = fan_out(&world).await;
    flows::fail(&world, "root").await;
    world.run_due().await;
    assert_eq!(count(&world, &graph, PublicState::Skipped).await, 500);
}

async fn a_long_chain_is_skipped_to_its_end(world: World) {
    let names: Vec<String> = (0..300).map(|n| format!("n{n}")).collect();
    let list = names.iter().map(|name| node(name)).collect();
    let chain = names.windows(2).map(|pair| flows::edge(&pair[0], &pair[1])).collect();
    let graph = flows::submit(&world, list, chain).await;
    flows::fail(&world, "n0").await;
    world.run_due().await;
    assert_eq!(count(&world, &graph, PublicState::Skipped).await, 299);
}

async fn a_damaged_downstream_does_not_keep_its_upstream_from_ending(world: World) {
    let graph = flows::submit(&world, nodes(&["a", "b", "c"]), edges(&[("a", "b"), ("a", "c")])).await;
    world.damage(Damage::Execution(graph.id("b"))).await;
    flows::complete(&world, "a").await;
    assert_eq!(flows::states(&world, &graph, &["a", "c"]).await, [PublicState::Completed, PublicState::Waiting]);
}

/// An edge in force of an upstream that is over, left to a continuation.
async fn unsettled(world: &World, graph: &Graph) -> Edge {
    let from_node = graph.id("root");
    let outgoing = world.backend.list_edges(graph.flow, EdgeDirection::Outgoing { from_node }).await.unwrap();
    let open = outgoing.into_iter().find(|edge| edge.edge_state == EdgeState::Unsatisfied).expect("an edge is open");
    Edge { flow: graph.flow, id: open.edge_id, from: from_node, to: open.downstream_execution_id }
}

async fn edges_left_to_a_continuation_can_be_settled_by_hand(world: World) {
    let good = fan_out(&world).await;
    flows::complete(&world, "root").await;
    let edge = unsettled(&world, &good).await;
    // The stored outcome counts, whatever the caller says.
    let answer = world.backend.resolve_dependency(edge.resolution(TerminalOutcome::Failed)).await.unwrap();
    assert_eq!(answer, ResolveDependencyOutcome::Satisfied);
    assert_eq!(world.state(edge.to).await, PublicState::Waiting);
    let again = world.backend.resolve_dependency(edge.resolution(TerminalOutcome::Success)).await.unwrap();
    assert_eq!(again, ResolveDependencyOutcome::AlreadyResolved);
    world.run_due().await;
    assert_eq!(count(&world, &good, PublicState::Waiting).await, 500);

    let bad = fan_out(&world).await;
    flows::fail(&world, "root").await;
    let edge = unsettled(&world, &bad).await;
    let answer = world.backend.resolve_dependency(edge.resolution(TerminalOutcome::Failed)).await.unwrap();
    assert_eq!(answer, ResolveDependencyOutcome::Impossible);
    assert_eq!(world.state(edge.to).await, PublicState::Skipped);
    world.run_due().await;
    assert_eq!(count(&world, &bad, PublicState::Skipped).await, 500);
}

async fn a_settled_edge_is_settled_once(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = applied(&world, flow, a, b).await;
    flows::complete(&world, "a").await;
    for outcome in [TerminalOutcome::Success, TerminalOutcome::Failed] {
        let answer = world.backend.resolve_dependency(edge.resolution(outcome)).await.unwrap();
        assert_eq!(answer, ResolveDependencyOutcome::AlreadyResolved);
    }
    assert_eq!(flows::group(&world, flow, b).await.satisfied_count, 1);
}

async fn refused_resolutions_are_explained(world: World) {
    let resolve = async |args| world.backend.resolve_dependency(args).await;
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let unknown = Edge::new(&world, flow, a, b);
    expect::invalid(resolve(unknown.resolution(TerminalOutcome::None)).await, ValidationKind::InvalidInput);
    expect::invalid(resolve(unknown.resolution(TerminalOutcome::Success)).await, ValidationKind::InvalidDependency);
    let edge = staged(&world, flow, a, b).await;
    expect::invalid(resolve(edge.resolution(TerminalOutcome::Success)).await, ValidationKind::InvalidDependency);
    edge.apply(&world).await.unwrap();
    let other = Edge { from: b, to: a, ..edge };
    expect::invalid(resolve(other.resolution(TerminalOutcome::Success)).await, ValidationKind::InvalidDependency);
    let missing = Edge { flow: FlowId::from_uuid(world.uuid()), ..edge };
    expect::invalid(resolve(missing.resolution(TerminalOutcome::Success)).await, ValidationKind::InvalidDependency);
    // Nobody can say for an upstream that it is over.
    expect::invalid(resolve(edge.resolution(TerminalOutcome::Success)).await, ValidationKind::InvalidInput);
    assert_eq!(world.state(b).await, PublicState::WaitingChildren);
}

async fn a_cascade_can_be_repeated(world: World) {
    let graph = flows::submit(&world, nodes(&["a", "b"]), edges(&[("a", "b")])).await;
    flows::complete(&world, "a").await;
    for _ in 0..2 {
        let outcome = world.backend.cascade_completion(graph.id("a")).await.unwrap();
        assert_eq!(outcome, CascadeOutcome { resolved: 0, cascaded_children: 0, synchronous: true });
    }
    assert_eq!(flows::group(&world, graph.flow, graph.id("b")).await.satisfied_count, 1);
}

async fn a_cascade_of_many_edges_is_done_when_it_returns(world: World) {
    let graph = fan_out(&world).await;
    flows::fail(&world, "root").await;
    let open = 500 - u32::try_from(count(&world, &graph, PublicState::Skipped).await).unwrap();
    let outcome = world.backend.cascade_completion(graph.id("root")).await.unwrap();
    assert_eq!((outcome.resolved, outcome.cascaded_children), (open, open));
    assert_eq!(count(&world, &graph, PublicState::Skipped).await, 500);
    world.run_due().await;
    assert_eq!(world.backend.cascade_completion(graph.id("root")).await.unwrap().resolved, 0);
}

async fn a_cascade_without_a_flow_or_an_end_does_nothing(world: World) {
    let nothing = CascadeOutcome { resolved: 0, cascaded_children: 0, synchronous: true };
    let cascade = async |id: ExecutionId| world.backend.cascade_completion(id).await.unwrap();
    assert_eq!(cascade(world.execution_id()).await, nothing);
    let (solo, handle) = world.claim_one().await;
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(cascade(solo).await, nothing);
    let graph = flows::submit(&world, nodes(&["a", "b"]), edges(&[("a", "b")])).await;
    assert_eq!(cascade(graph.id("a")).await, nothing);
    assert_eq!(world.state(graph.id("b")).await, PublicState::WaitingChildren);
}

async fn every_skipped_member_is_announced_once(world: World) {
    let graph = flows::submit(&world, nodes(&["a", "b", "c"]), edges(&[("a", "b"), ("b", "c")])).await;
    let filter = ScannerFilter::default();
    let mut feed = world.backend.subscribe_completion(EventCursor::TAIL, &filter).await.unwrap();
    flows::fail(&world, "a").await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = feed.next().await.unwrap().unwrap();
        assert_eq!(event.flow_id, Some(graph.flow));
        seen.push((event.execution_id, event.outcome));
    }
    use CompletionOutcome::{Failed, Skipped};
    assert_eq!(seen, [(graph.id("a"), Failed), (graph.id("b"), Skipped), (graph.id("c"), Skipped)]);
}
