//! What happens to upstreams that still run once their group is decided.

use ff_core::backend::dependencies::{EdgeDependencyPolicy, OnSatisfied, SiblingCancelReconcileAction};
use ff_core::ids::FlowId;
use ff_core::state::PublicState;

use crate::flows::kit::{self as flows, Graph, edges, node};
use crate::{Damage, World, cases, expect};

cases!["dependencies":
    the_rest_of_a_satisfied_group_is_cancelled_where_asked,
    the_rest_of_an_impossible_group_is_cancelled_where_asked,
    the_rest_of_a_group_runs_on_where_asked,
    siblings_that_are_over_never_change,
    all_of_never_cancels_siblings,
    a_running_sibling_loses_its_lease,
    a_cancelled_sibling_skips_its_other_downstreams,
    a_drained_group_is_forgotten,
    draining_the_unknown_succeeds,
    a_group_is_reconciled_once_its_siblings_are_over,
    a_damaged_sibling_does_not_spare_the_others,
];

use PublicState::{Cancelled, Completed, Failed, Skipped, Waiting};

/// Upstreams `a`, `b`, `c`, `d` of one downstream `z`.
async fn group_of_four(world: &World, join: EdgeDependencyPolicy) -> Graph {
    let list = vec![node("a"), node("b"), node("c"), node("d"), flows::joined("z", join)];
    flows::submit(world, list, edges(&[("a", "z"), ("b", "z"), ("c", "z"), ("d", "z")])).await
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "z"];

async fn the_rest_of_a_satisfied_group_is_cancelled_where_asked(world: World) {
    let graph = group_of_four(&world, flows::quorum(2, OnSatisfied::CancelRemaining)).await;
    flows::complete(&world, "a").await;
    world.run_due().await;
    assert_eq!(world.state(graph.id("b")).await, Waiting);
    flows::complete(&world, "b").await;
    world.run_due().await;
    assert_eq!(flows::states(&world, &graph, &NAMES).await, [Completed, Completed, Cancelled, Cancelled, Waiting]);
    flows::complete(&world, "z").await;
}

async fn the_rest_of_an_impossible_group_is_cancelled_where_asked(world: World) {
    let graph = group_of_four(&world, flows::quorum(3, OnSatisfied::CancelRemaining)).await;
    flows::fail(&world, "a").await;
    flows::fail(&world, "b").await;
    world.run_due().await;
    assert_eq!(flows::states(&world, &graph, &NAMES).await, [Failed, Failed, Cancelled, Cancelled, Skipped]);
}

async fn the_rest_of_a_group_runs_on_where_asked(world: World) {
    let graph = group_of_four(&world, flows::any_of(OnSatisfied::LetRun)).await;
    flows::complete(&world, "a").await;
    world.run_due().await;
    assert_eq!(flows::states(&world, &graph, &NAMES).await, [Completed, Waiting, Waiting, Waiting, Waiting]);
    let impossible = group_of_four(&world, flows::quorum(4, OnSatisfied::LetRun)).await;
    flows::fail(&world, "a").await;
    world.run_due().await;
    assert_eq!(flows::states(&world, &impossible, &NAMES).await, [Failed, Waiting, Waiting, Waiting, Skipped]);
}

async fn siblings_that_are_over_never_change(world: World) {
    let graph = group_of_four(&world, flows::any_of(OnSatisfied::CancelRemaining)).await;
    flows::fail(&world, "a").await;
    flows::complete(&world, "b").await;
    // One of those still listed ends before the engine comes to it.
    flows::complete(&world, "c").await;
    let before = world.backend.describe_execution(graph.id("c")).await.unwrap();
    world.run_due().await;
    assert_eq!(flows::states(&world, &graph, &NAMES).await, [Failed, Completed, Completed, Cancelled, Waiting]);
    assert_eq!(world.backend.describe_execution(graph.id("c")).await.unwrap(), before);
}

async fn all_of_never_cancels_siblings(world: World) {
    let graph = group_of_four(&world, EdgeDependencyPolicy::AllOf {}).await;
    flows::fail(&world, "a").await;
    world.run_due().await;
    assert_eq!(flows::states(&world, &graph, &NAMES).await, [Failed, Waiting, Waiting, Waiting, Skipped]);
}

async fn a_running_sibling_loses_its_lease(world: World) {
    let graph = group_of_four(&world, flows::any_of(OnSatisfied::CancelRemaining)).await;
    let handle = flows::claim_now(&world, "b").await;
    flows::complete(&world, "a").await;
    world.backend.renew(&handle).await.unwrap();
    world.run_due().await;
    assert_eq!(world.state(graph.id("b")).await, Cancelled);
    expect::contention(world.backend.complete(&handle, None).await, "execution_not_active");
}

async fn a_cancelled_sibling_skips_its_other_downstreams(world: World) {
    let list =
        vec![node("a"), node("b"), flows::joined("z", flows::any_of(OnSatisfied::CancelRemaining)), node("other")];
    let graph = flows::submit(&world, list, edges(&[("a", "z"), ("b", "z"), ("b", "other")])).await;
    flows::complete(&world, "a").await;
    world.run_due().await;
    let states = flows::states(&world, &graph, &["b", "z", "other"]).await;
    assert_eq!(states, [Cancelled, Waiting, Skipped]);
}

async fn a_drained_group_is_forgotten(world: World) {
    let graph = group_of_four(&world, flows::any_of(OnSatisfied::CancelRemaining)).await;
    flows::complete(&world, "a").await;
    for _ in 0..2 {
        world.backend.drain_sibling_cancel_group(graph.flow, graph.id("z")).await.unwrap();
    }
    world.run_due().await;
    assert_eq!(world.state(graph.id("b")).await, Waiting);
    let action = world.backend.reconcile_sibling_cancel_group(graph.flow, graph.id("z")).await.unwrap();
    assert_eq!(action, SiblingCancelReconcileAction::NoOp);
}

async fn draining_the_unknown_succeeds(world: World) {
    let missing = FlowId::from_uuid(world.uuid());
    let reconcile = async |flow, member| world.backend.reconcile_sibling_cancel_group(flow, member).await.unwrap();
    for member in [world.member_id(missing), world.execution_id()] {
        world.backend.drain_sibling_cancel_group(missing, member).await.unwrap();
        assert_eq!(reconcile(missing, member).await, SiblingCancelReconcileAction::NoOp);
    }
    let graph = group_of_four(&world, flows::any_of(OnSatisfied::CancelRemaining)).await;
    world.backend.drain_sibling_cancel_group(graph.flow, graph.id("z")).await.unwrap();
    flows::complete(&world, "a").await;
    world.run_due().await;
    assert_eq!(world.state(graph.id("b")).await, Cancelled);
}

async fn a_group_is_reconciled_once_its_siblings_are_over(world: World) {
    let graph = group_of_four(&world, flows::any_of(OnSatisfied::CancelRemaining)).await;
    let reconcile = async || world.backend.reconcile_sibling_cancel_group(graph.flow, graph.id("z")).await.unwrap();
    assert_eq!(reconcile().await, SiblingCancelReconcileAction::NoOp);
    flows::complete(&world, "a").await;
    assert_eq!(reconcile().await, SiblingCancelReconcileAction::NoOp);
    for name in ["b", "c", "d"] {
        flows::cancel(&world, graph.id(name)).await;
    }
    assert_eq!(reconcile().await, SiblingCancelReconcileAction::CompletedDrain);
    assert_eq!(reconcile().await, SiblingCancelReconcileAction::NoOp);
}

async fn a_damaged_sibling_does_not_spare_the_others(world: World) {
    let graph = group_of_four(&world, flows::any_of(OnSatisfied::CancelRemaining)).await;
    flows::complete(&world, "a").await;
    world.damage(Damage::Execution(graph.id("c"))).await;
    world.run_due().await;
    assert_eq!(flows::states(&world, &graph, &["b", "d"]).await, [Cancelled, Cancelled]);
}
