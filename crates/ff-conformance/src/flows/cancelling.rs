//! Cancelling flows and their members.

use std::collections::BTreeSet;

use ff_core::backend::flows::{
    CANCEL_GRACE_MS_MAX, CancelFlowHeader, CancelFlowHeaderArgs, CancelFlowPolicy, CancelFlowResult, CancelFlowWait,
    FlowNode,
};
use ff_core::error::{EngineError, Entity, StateKind, ValidationKind};
use ff_core::ids::FlowId;
use ff_core::state::{FlowState, PublicState};

use super::kit::{self, Graph, edges, node, nodes};
use crate::{Damage, World, cases, expect};

cases!["flows":
    cancelling_the_flow_alone_leaves_its_members,
    cancelling_pending_members_lets_active_ones_finish,
    cancelling_all_ends_every_member_that_is_not_over,
    a_cancelled_flow_skips_nobody_it_owes_a_cancellation,
    cancelling_without_waiting_is_done_by_the_timers,
    cancelling_an_empty_flow_is_done_at_once,
    a_flow_is_cancelled_once,
    a_missing_flow_cannot_be_cancelled,
    a_wait_that_runs_out_leaves_the_rest_to_the_timers,
    a_member_that_cannot_be_cancelled_is_named,
    a_large_flow_is_cancelled_slice_by_slice,
    a_header_lists_the_members_it_owes,
    a_header_waits_for_its_grace,
    a_repeated_header_answers_the_first,
    a_header_of_the_flow_alone_owes_nobody,
    a_bad_header_is_explained_in_order,
    acknowledged_members_are_left_alone,
    acknowledging_the_unknown_succeeds,
    a_member_owed_a_cancellation_is_not_handed_out,
    a_worker_cannot_complete_a_cancelled_member,
];

const WAIT: CancelFlowWait = CancelFlowWait::WaitIndefinite {};
const NO_WAIT: CancelFlowWait = CancelFlowWait::NoWait {};

/// One member in each of these states: active, completed, waiting, and waiting for dependencies.
async fn mixed(world: &World) -> Graph {
    let graph =
        kit::submit(world, nodes(&["active", "done", "waiting", "blocked"]), edges(&[("waiting", "blocked")])).await;
    kit::complete(world, "done").await;
    kit::claim_now(world, "active").await;
    graph
}

const NAMES: [&str; 4] = ["active", "done", "waiting", "blocked"];

fn members(ids: &[ff_core::ids::ExecutionId]) -> BTreeSet<ff_core::ids::ExecutionId> {
    ids.iter().copied().collect()
}

async fn cancelling_the_flow_alone_leaves_its_members(world: World) {
    use PublicState::{Active, Completed, Waiting, WaitingChildren};
    let graph = mixed(&world).await;
    let answer = world.backend.cancel_flow(graph.flow, CancelFlowPolicy::FlowOnly, WAIT).await.unwrap();
    let expected = CancelFlowResult::Cancelled {
        cancellation_policy: CancelFlowPolicy::FlowOnly,
        member_count: 0,
        member_execution_ids: Vec::new(),
    };
    assert_eq!(answer, expected);
    world.pass(60_000).await;
    let flow = world.backend.describe_flow(graph.flow).await.unwrap().unwrap();
    assert_eq!(flow.public_flow_state, FlowState::Cancelled);
    assert_eq!(flow.cancellation_policy, Some(CancelFlowPolicy::FlowOnly));
    assert_eq!(kit::states(&world, &graph, &NAMES).await, [Active, Completed, Waiting, WaitingChildren]);
    kit::complete(&world, "waiting").await;
    assert_eq!(world.state(graph.id("blocked")).await, Waiting);
}

async fn cancelling_pending_members_lets_active_ones_finish(world: World) {
    use PublicState::{Active, Cancelled, Completed};
    let graph = mixed(&world).await;
    let answer = world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelPending, WAIT).await.unwrap();
    let CancelFlowResult::Cancelled { member_count, member_execution_ids, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(member_count, 2);
    assert_eq!(members(&member_execution_ids), members(&[graph.id("waiting"), graph.id("blocked")]));
    assert_eq!(kit::states(&world, &graph, &NAMES).await, [Active, Completed, Cancelled, Cancelled]);
}

async fn cancelling_all_ends_every_member_that_is_not_over(world: World) {
    use PublicState::{Cancelled, Completed};
    let graph = mixed(&world).await;
    let done = world.backend.describe_execution(graph.id("done")).await.unwrap();
    let answer = world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, WAIT).await.unwrap();
    let CancelFlowResult::Cancelled { member_count, member_execution_ids, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((member_count, member_execution_ids.len()), (3, 3));
    assert_eq!(kit::states(&world, &graph, &NAMES).await, [Cancelled, Completed, Cancelled, Cancelled]);
    assert_eq!(world.backend.describe_execution(graph.id("done")).await.unwrap(), done);
    let flow = world.backend.describe_flow(graph.flow).await.unwrap().unwrap();
    assert_eq!((flow.cancelled_at, flow.last_mutation_at), (Some(world.now()), world.now()));
}

async fn a_cancelled_flow_skips_nobody_it_owes_a_cancellation(world: World) {
    let names = ["a", "b", "c", "d"];
    let graph = kit::submit(&world, nodes(&names), edges(&[("a", "b"), ("b", "c"), ("c", "d")])).await;
    world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, WAIT).await.unwrap();
    assert_eq!(kit::states(&world, &graph, &names).await, [PublicState::Cancelled; 4]);
}

async fn cancelling_without_waiting_is_done_by_the_timers(world: World) {
    let graph = kit::submit(&world, nodes(&["a", "b"]), Vec::new()).await;
    let answer = world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, NO_WAIT).await.unwrap();
    let CancelFlowResult::CancellationScheduled { cancellation_policy, member_count, member_execution_ids } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!((cancellation_policy, member_count, member_execution_ids.len()), (CancelFlowPolicy::CancelAll, 2, 2));
    assert_eq!(world.state(graph.id("a")).await, PublicState::Waiting);
    world.run_due().await;
    assert_eq!(kit::states(&world, &graph, &["a", "b"]).await, [PublicState::Cancelled; 2]);
}

async fn cancelling_an_empty_flow_is_done_at_once(world: World) {
    let flow = kit::flow(&world).await;
    let answer = world.backend.cancel_flow(flow, CancelFlowPolicy::CancelAll, NO_WAIT).await.unwrap();
    assert!(matches!(answer, CancelFlowResult::Cancelled { member_count: 0, .. }), "{answer:?}");

    let over = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    kit::complete(&world, "a").await;
    let answer = world.backend.cancel_flow(over.flow, CancelFlowPolicy::CancelAll, NO_WAIT).await.unwrap();
    assert!(matches!(answer, CancelFlowResult::Cancelled { member_count: 0, .. }), "{answer:?}");
    world.run_due().await;
    assert_eq!(world.state(over.id("a")).await, PublicState::Completed);
}

async fn a_flow_is_cancelled_once(world: World) {
    let flow = kit::flow(&world).await;
    world.backend.cancel_flow(flow, CancelFlowPolicy::FlowOnly, NO_WAIT).await.unwrap();
    let again = world.backend.cancel_flow(flow, CancelFlowPolicy::FlowOnly, NO_WAIT).await;
    expect::state(again, StateKind::FlowAlreadyTerminal);
}

async fn a_missing_flow_cannot_be_cancelled(world: World) {
    let missing = FlowId::from_uuid(world.uuid());
    let answer = world.backend.cancel_flow(missing, CancelFlowPolicy::CancelAll, NO_WAIT).await;
    expect::not_found(answer, Entity::Flow);
    let header = world.backend.cancel_flow_header(header(missing, "cancel_all")).await;
    expect::not_found(header, Entity::Flow);
}

async fn a_wait_that_runs_out_leaves_the_rest_to_the_timers(world: World) {
    let graph = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    let no_time = CancelFlowWait::WaitTimeout { timeout_ms: 0 };
    let answer = world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, no_time).await;
    match expect::refusal(answer) {
        EngineError::Timeout { op: "cancel_flow", elapsed } => assert!(elapsed.is_zero()),
        other => panic!("expected a timeout, got {other:?}"),
    }
    world.run_due().await;
    assert_eq!(world.state(graph.id("a")).await, PublicState::Cancelled);
}

async fn a_member_that_cannot_be_cancelled_is_named(world: World) {
    let graph = kit::submit(&world, nodes(&["a", "b", "c"]), Vec::new()).await;
    world.damage(Damage::Execution(graph.id("b"))).await;
    let long = CancelFlowWait::WaitTimeout { timeout_ms: 10_000 };
    let answer = world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, long).await.unwrap();
    let CancelFlowResult::PartiallyCancelled { cancellation_policy, member_execution_ids, failed_member_execution_ids } =
        answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(cancellation_policy, CancelFlowPolicy::CancelAll);
    assert_eq!(members(&member_execution_ids), members(&[graph.id("a"), graph.id("c")]));
    assert_eq!(failed_member_execution_ids, [graph.id("b")]);
    assert_eq!(kit::states(&world, &graph, &["a", "c"]).await, [PublicState::Cancelled; 2]);
}

async fn a_large_flow_is_cancelled_slice_by_slice(world: World) {
    let many: Vec<_> = (0..450).map(|n| FlowNode { name: format!("n{n}"), ..node("bulk") }).collect();
    let graph = kit::submit(&world, many, Vec::new()).await;
    let answer = world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, NO_WAIT).await.unwrap();
    let CancelFlowResult::CancellationScheduled { member_count, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(member_count, 450);
    world.run_due().await;
    for id in graph.members.values() {
        assert_eq!(world.state(*id).await, PublicState::Cancelled);
    }
}

fn header(flow_id: FlowId, policy: &str) -> CancelFlowHeaderArgs {
    CancelFlowHeaderArgs {
        flow_id,
        reason: "maintenance".to_owned(),
        cancellation_policy: policy.to_owned(),
        grace_ms: 30_000,
    }
}

async fn a_header_lists_the_members_it_owes(world: World) {
    for (policy, expected) in
        [("cancel_pending", vec!["waiting", "blocked"]), ("cancel_all", vec!["active", "waiting", "blocked"])]
    {
        let graph = mixed(&world).await;
        let answer = world.backend.cancel_flow_header(header(graph.flow, policy)).await.unwrap();
        let CancelFlowHeader::Cancelled { cancellation_policy, member_count, member_execution_ids } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(cancellation_policy.as_str(), policy);
        assert_eq!(member_count, expected.len() as u64);
        let expected: BTreeSet<_> = expected.into_iter().map(|name| graph.id(name)).collect();
        assert_eq!(members(&member_execution_ids), expected);
        let flow = world.backend.describe_flow(graph.flow).await.unwrap().unwrap();
        assert_eq!(flow.public_flow_state, FlowState::Cancelled);
        assert_eq!(flow.cancel_reason.as_deref(), Some("maintenance"));
        world.pass(30_000).await;
    }
}

async fn a_header_waits_for_its_grace(world: World) {
    let graph = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    world.backend.cancel_flow_header(header(graph.flow, "cancel_all")).await.unwrap();
    world.pass(29_999).await;
    assert_eq!(world.state(graph.id("a")).await, PublicState::Waiting);
    world.pass(1).await;
    assert_eq!(world.state(graph.id("a")).await, PublicState::Cancelled);
}

async fn a_repeated_header_answers_the_first(world: World) {
    let graph = mixed(&world).await;
    world.backend.cancel_flow_header(header(graph.flow, "cancel_pending")).await.unwrap();
    let second = CancelFlowHeaderArgs { reason: "other".to_owned(), ..header(graph.flow, "cancel_all") };
    let answer = world.backend.cancel_flow_header(second).await.unwrap();
    let CancelFlowHeader::AlreadyTerminal { stored_cancellation_policy, stored_cancel_reason, member_execution_ids } =
        answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(stored_cancellation_policy, Some(CancelFlowPolicy::CancelPending));
    assert_eq!(stored_cancel_reason.as_deref(), Some("maintenance"));
    assert_eq!(member_execution_ids.len(), 4);
}

async fn a_header_of_the_flow_alone_owes_nobody(world: World) {
    let graph = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    let answer = world.backend.cancel_flow_header(header(graph.flow, "flow_only")).await.unwrap();
    assert!(matches!(answer, CancelFlowHeader::Cancelled { member_count: 0, .. }), "{answer:?}");
    world.pass(60_000).await;
    assert_eq!(world.state(graph.id("a")).await, PublicState::Waiting);
}

async fn a_bad_header_is_explained_in_order(world: World) {
    let missing = FlowId::from_uuid(world.uuid());
    let endless = CancelFlowHeaderArgs { grace_ms: CANCEL_GRACE_MS_MAX + 1, ..header(missing, "nonsense") };
    expect::invalid(world.backend.cancel_flow_header(endless).await, ValidationKind::InvalidGraceMs);
    let unknown = world.backend.cancel_flow_header(header(missing, "nonsense")).await;
    expect::invalid(unknown, ValidationKind::InvalidInput);
    let bad_reason = CancelFlowHeaderArgs { reason: "a\nb".to_owned(), ..header(missing, "cancel_all") };
    expect::invalid(world.backend.cancel_flow_header(bad_reason).await, ValidationKind::InvalidInput);
}

async fn acknowledged_members_are_left_alone(world: World) {
    let graph = kit::submit(&world, nodes(&["a", "b"]), Vec::new()).await;
    world.backend.cancel_flow_header(header(graph.flow, "cancel_all")).await.unwrap();
    for _ in 0..2 {
        world.backend.ack_cancel_member(graph.flow, graph.id("a")).await.unwrap();
    }
    world.pass(30_000).await;
    assert_eq!(kit::states(&world, &graph, &["a", "b"]).await, [PublicState::Waiting, PublicState::Cancelled]);
    // Nothing is owed any more.
    world.backend.ack_cancel_member(graph.flow, graph.id("b")).await.unwrap();
    world.pass(60_000).await;
    assert_eq!(world.state(graph.id("a")).await, PublicState::Waiting);
}

async fn acknowledging_the_unknown_succeeds(world: World) {
    let missing = FlowId::from_uuid(world.uuid());
    world.backend.ack_cancel_member(missing, world.member_id(missing)).await.unwrap();
    world.backend.ack_cancel_member(missing, world.execution_id()).await.unwrap();
    let graph = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    world.backend.ack_cancel_member(graph.flow, graph.id("a")).await.unwrap();
    world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, WAIT).await.unwrap();
    assert_eq!(world.state(graph.id("a")).await, PublicState::Cancelled);
}

async fn a_member_owed_a_cancellation_is_not_handed_out(world: World) {
    let graph = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    world.backend.cancel_flow_header(header(graph.flow, "cancel_pending")).await.unwrap();
    assert!(kit::claim(&world, "a").await.is_none());
    world.pass(30_000).await;
    assert_eq!(world.state(graph.id("a")).await, PublicState::Cancelled);
}

async fn a_worker_cannot_complete_a_cancelled_member(world: World) {
    let graph = kit::submit(&world, nodes(&["a"]), Vec::new()).await;
    let handle = kit::claim_now(&world, "a").await;
    world.backend.cancel_flow(graph.flow, CancelFlowPolicy::CancelAll, WAIT).await.unwrap();
    expect::contention(world.backend.complete(&handle, None).await, "execution_not_active");
    assert_eq!(world.state(graph.id("a")).await, PublicState::Cancelled);
}
