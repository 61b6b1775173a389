//! Group policies, and putting staged edges in force.

use ff_core::backend::dependencies::{
    ApplyDependencyToChildResult, EdgeDependencyPolicy, FlowEligibility, OnSatisfied, SetEdgeGroupPolicyResult,
};
use ff_core::backend::flows::{CancelFlowPolicy, CancelFlowWait};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::{ExecutionId, FlowId, LaneId};
use ff_core::state::{EdgeGroupState, EdgeState, PublicState};

use super::kit::{Edge, applied, staged};
use crate::flows::kit as flows;
use crate::{World, cases, expect};

cases!["dependencies":
    a_group_policy_is_set_once_per_wish,
    a_group_policy_is_fixed_by_its_first_edge,
    refused_group_policies_are_explained_in_order,
    an_edge_in_force_holds_its_downstream_back,
    an_edge_is_put_in_force_once,
    refused_applications_are_explained_in_order,
    an_upstream_that_is_over_settles_its_edge_at_once,
    an_upstream_that_failed_skips_the_downstream_at_once,
    a_group_is_not_decided_before_all_staged_edges_are_in_force,
    a_delay_survives_the_wait_for_dependencies,
    a_delay_that_passed_meanwhile_does_not_hold,
    an_edge_into_a_running_execution_does_not_interrupt_it,
    a_suspended_execution_waits_for_its_dependencies_once_resumed,
    an_edge_staged_after_the_decision_opens_a_new_group,
    what_the_graph_says_about_an_execution,
    a_parent_whose_children_cannot_all_succeed_is_impossible,
];

const ALL_OF: EdgeDependencyPolicy = EdgeDependencyPolicy::AllOf {};

async fn a_group_policy_is_set_once_per_wish(world: World) {
    let flow = flows::flow(&world).await;
    let a = flows::member(&world, flow, "a").await;
    let set = async |policy| world.backend.set_edge_group_policy(flow, a, policy).await.unwrap();
    let two = flows::quorum(2, OnSatisfied::LetRun);
    assert_eq!(set(two).await, SetEdgeGroupPolicyResult::Set);
    assert_eq!(set(two).await, SetEdgeGroupPolicyResult::AlreadySet);
    // Every part of a policy counts.
    assert_eq!(set(flows::quorum(3, OnSatisfied::LetRun)).await, SetEdgeGroupPolicyResult::Set);
    assert_eq!(set(flows::quorum(3, OnSatisfied::CancelRemaining)).await, SetEdgeGroupPolicyResult::Set);
    assert_eq!(set(flows::any_of(OnSatisfied::CancelRemaining)).await, SetEdgeGroupPolicyResult::Set);
    assert_eq!(flows::group(&world, flow, a).await.policy, flows::any_of(OnSatisfied::CancelRemaining));
    // A policy without edges holds nobody back.
    assert_eq!(world.state(a).await, PublicState::Waiting);
    flows::complete(&world, "a").await;
}

async fn a_group_policy_is_fixed_by_its_first_edge(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let any_of = flows::any_of(OnSatisfied::LetRun);
    world.backend.set_edge_group_policy(flow, b, any_of).await.unwrap();
    staged(&world, flow, a, b).await;
    for policy in [any_of, ALL_OF] {
        let detail =
            expect::invalid(world.backend.set_edge_group_policy(flow, b, policy).await, ValidationKind::InvalidInput);
        assert_eq!(detail, "edge_group_policy_already_fixed");
    }
    assert_eq!(flows::group(&world, flow, b).await.policy, any_of);
}

async fn refused_group_policies_are_explained_in_order(world: World) {
    let missing = FlowId::from_uuid(world.uuid());
    let set = async |flow, member, policy| world.backend.set_edge_group_policy(flow, member, policy).await;
    for k in [0, 1 << 31] {
        let quorum = flows::quorum(k, OnSatisfied::LetRun);
        let answer = set(missing, world.member_id(missing), quorum).await;
        expect::invalid(answer, ValidationKind::InvalidInput);
    }
    expect::not_found(set(missing, world.member_id(missing), ALL_OF).await, Entity::Flow);
    let flow = flows::flow(&world).await;
    let stranger = flows::beside(&world, flow, "stranger").await;
    expect::state(set(flow, stranger, ALL_OF).await, StateKind::ExecutionNotInFlow);
    expect::state(set(flow, world.member_id(flow), ALL_OF).await, StateKind::ExecutionNotInFlow);
    let far = ExecutionId::new((stranger.partition().index() + 1) % 256, world.uuid());
    expect::state(set(flow, far, ALL_OF).await, StateKind::ExecutionNotInFlow);
}

async fn an_edge_in_force_holds_its_downstream_back(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let c = flows::member(&world, flow, "c").await;
    let first = staged(&world, flow, a, c).await;
    let second = staged(&world, flow, b, c).await;
    let answer = first.apply(&world).await.unwrap();
    assert_eq!(answer, ApplyDependencyToChildResult::Applied { unsatisfied_count: 1 });
    assert_eq!(world.state(c).await, PublicState::WaitingChildren);
    assert!(flows::claim(&world, "c").await.is_none());
    let answer = second.apply(&world).await.unwrap();
    assert_eq!(answer, ApplyDependencyToChildResult::Applied { unsatisfied_count: 2 });
    let found = world.backend.describe_edge(flow, first.id).await.unwrap().unwrap();
    assert_eq!(found.edge_state, EdgeState::Unsatisfied);
    let group = flows::group(&world, flow, c).await;
    assert_eq!((group.policy, group.total_deps, group.running_count), (ALL_OF, 2, 2));
    assert_eq!(group.group_state, EdgeGroupState::Pending);
}

async fn an_edge_is_put_in_force_once(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = applied(&world, flow, a, b).await;
    assert_eq!(edge.apply(&world).await.unwrap(), ApplyDependencyToChildResult::AlreadyApplied);
    assert_eq!(flows::group(&world, flow, b).await.total_deps, 1);
    flows::complete(&world, "a").await;
    assert_eq!(edge.apply(&world).await.unwrap(), ApplyDependencyToChildResult::AlreadyApplied);
    assert_eq!(world.state(b).await, PublicState::Waiting);
}

async fn refused_applications_are_explained_in_order(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = staged(&world, flow, a, b).await;

    let nowhere = Edge { to: ExecutionId::new(256, world.uuid()), ..edge };
    expect::invalid(nowhere.apply(&world).await, ValidationKind::InvalidInput);
    let absent = Edge { to: world.member_id(flow), ..edge };
    expect::not_found(absent.apply(&world).await, Entity::Execution);
    let other = flows::flow(&world).await;
    let far = flows::member(&world, other, "far").await;
    expect::conflict(Edge { to: far, ..edge }.apply(&world).await, "execution_already_in_flow");
    let stranger = flows::beside(&world, flow, "stranger").await;
    expect::invalid(Edge { to: stranger, ..edge }.apply(&world).await, ValidationKind::InvalidDependency);
    let solo = flows::beside(&world, other, "solo").await;
    expect::invalid(Edge { to: solo, ..edge }.apply(&world).await, ValidationKind::InvalidDependency);
    let unknown = Edge::new(&world, flow, a, b);
    expect::invalid(unknown.apply(&world).await, ValidationKind::InvalidDependency);
    let other_end = Edge { from: b, to: a, ..edge };
    expect::invalid(other_end.apply(&world).await, ValidationKind::InvalidDependency);

    let policy = CancelFlowPolicy::FlowOnly;
    world.backend.cancel_flow(flow, policy, CancelFlowWait::NoWait {}).await.unwrap();
    expect::state(unknown.apply(&world).await, StateKind::FlowAlreadyTerminal);
    assert_eq!(world.state(b).await, PublicState::Waiting);
}

async fn an_upstream_that_is_over_settles_its_edge_at_once(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let edge = staged(&world, flow, a, b).await;
    flows::complete(&world, "a").await;
    let found = world.backend.describe_edge(flow, edge.id).await.unwrap().unwrap();
    assert_eq!(found.edge_state, EdgeState::Staged);
    let answer = edge.apply(&world).await.unwrap();
    assert_eq!(answer, ApplyDependencyToChildResult::Applied { unsatisfied_count: 0 });
    let found = world.backend.describe_edge(flow, edge.id).await.unwrap().unwrap();
    assert_eq!(found.edge_state, EdgeState::Satisfied);
    assert_eq!(world.state(b).await, PublicState::Waiting);
}

async fn an_upstream_that_failed_skips_the_downstream_at_once(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let c = flows::member(&world, flow, "c").await;
    applied(&world, flow, b, c).await;
    flows::fail(&world, "a").await;
    let edge = applied(&world, flow, a, b).await;
    let found = world.backend.describe_edge(flow, edge.id).await.unwrap().unwrap();
    assert_eq!(found.edge_state, EdgeState::Impossible);
    assert_eq!((world.state(b).await, world.state(c).await), (PublicState::Skipped, PublicState::Skipped));
}

async fn a_group_is_not_decided_before_all_staged_edges_are_in_force(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let c = flows::member(&world, flow, "c").await;
    let policy = flows::quorum(2, OnSatisfied::LetRun);
    world.backend.set_edge_group_policy(flow, c, policy).await.unwrap();
    let first = staged(&world, flow, a, c).await;
    let second = staged(&world, flow, b, c).await;
    first.apply(&world).await.unwrap();
    flows::fail(&world, "a").await;
    assert_eq!(world.state(c).await, PublicState::Skipped);
    assert_eq!(flows::group(&world, flow, c).await.group_state, EdgeGroupState::Impossible);

    let (d, e) = (flows::member(&world, flow, "d").await, flows::member(&world, flow, "e").await);
    let f = flows::member(&world, flow, "f").await;
    let first = staged(&world, flow, d, f).await;
    let last = staged(&world, flow, e, f).await;
    first.apply(&world).await.unwrap();
    flows::complete(&world, "d").await;
    assert_eq!(world.state(f).await, PublicState::WaitingChildren);
    last.apply(&world).await.unwrap();
    flows::complete(&world, "e").await;
    assert_eq!(world.state(f).await, PublicState::Waiting);
    // An edge into an execution that is over changes nothing about it.
    second.apply(&world).await.unwrap();
    assert_eq!(world.state(c).await, PublicState::Skipped);
}

async fn delayed(world: &World, flow: FlowId) -> ExecutionId {
    let id = world.member_id(flow);
    let lane = LaneId::new("late").unwrap();
    let args = CreateExecutionArgs {
        delay_until: Some(world.now().plus(10_000)),
        ..CreateExecutionArgs::new(id, world.namespace(), lane, "step")
    };
    world.submit(args).await;
    let args = ff_core::backend::flows::AddExecutionToFlowArgs { flow_id: flow, execution_id: id };
    world.backend.add_execution_to_flow(args).await.unwrap();
    id
}

async fn a_delay_survives_the_wait_for_dependencies(world: World) {
    let flow = flows::flow(&world).await;
    let a = flows::member(&world, flow, "a").await;
    let late = delayed(&world, flow).await;
    applied(&world, flow, a, late).await;
    assert_eq!(world.state(late).await, PublicState::WaitingChildren);
    flows::complete(&world, "a").await;
    assert_eq!(world.state(late).await, PublicState::Delayed);
    world.pass(10_000).await;
    assert_eq!(world.state(late).await, PublicState::Waiting);
}

async fn a_delay_that_passed_meanwhile_does_not_hold(world: World) {
    let flow = flows::flow(&world).await;
    let a = flows::member(&world, flow, "a").await;
    let late = delayed(&world, flow).await;
    applied(&world, flow, a, late).await;
    world.pass(10_000).await;
    assert_eq!(world.state(late).await, PublicState::WaitingChildren);
    flows::complete(&world, "a").await;
    assert_eq!(world.state(late).await, PublicState::Waiting);
}

async fn an_edge_into_a_running_execution_does_not_interrupt_it(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let handle = flows::claim_now(&world, "b").await;
    applied(&world, flow, a, b).await;
    assert_eq!(world.state(b).await, PublicState::Active);
    // It takes effect when the execution would become claimable again.
    world.backend.delay(&handle, world.now().plus(1_000)).await.unwrap();
    world.pass(1_000).await;
    assert_eq!(world.state(b).await, PublicState::WaitingChildren);
    flows::complete(&world, "a").await;
    assert_eq!(world.state(b).await, PublicState::Waiting);
}

async fn suspend(world: &World, handle: &ff_core::handle::Handle) {
    use ff_core::backend::signals::SeedWaitpointHmacSecretArgs;
    use ff_core::backend::suspension::{ResumeCondition, SuspendArgs, SuspensionReasonCode, WaitpointBinding};
    use ff_core::ids::{SuspensionId, WaitpointId};
    let secret = SeedWaitpointHmacSecretArgs { kid: "k1".to_owned(), secret_hex: "ab".repeat(32).into() };
    world.backend.seed_waitpoint_hmac_secret(secret).await.unwrap();
    let args = SuspendArgs::new(
        SuspensionId::from_uuid(world.uuid()),
        WaitpointBinding::fresh(WaitpointId::from_uuid(world.uuid())),
        ResumeCondition::OperatorOnly {},
        SuspensionReasonCode::WaitingForSignal,
    );
    world.backend.suspend(handle, args).await.unwrap();
}

async fn a_suspended_execution_waits_for_its_dependencies_once_resumed(world: World) {
    use ff_core::backend::suspension::ResumeExecutionArgs;
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let handle = flows::claim_now(&world, "b").await;
    suspend(&world, &handle).await;
    applied(&world, flow, a, b).await;
    assert_eq!(world.state(b).await, PublicState::Suspended);
    assert_eq!(world.backend.evaluate_flow_eligibility(b).await.unwrap(), FlowEligibility::NotRunnable);
    let args = ResumeExecutionArgs { execution_id: b, trigger_type: "operator".to_owned(), resume_delay_ms: 0 };
    world.backend.resume_execution(args).await.unwrap();
    assert_eq!(world.state(b).await, PublicState::WaitingChildren);
    flows::complete(&world, "a").await;
    assert_eq!(world.state(b).await, PublicState::Waiting);
}

async fn an_edge_staged_after_the_decision_opens_a_new_group(world: World) {
    let flow = flows::flow(&world).await;
    let (a, b) = (flows::member(&world, flow, "a").await, flows::member(&world, flow, "b").await);
    let c = flows::member(&world, flow, "c").await;
    applied(&world, flow, a, c).await;
    flows::complete(&world, "a").await;
    assert_eq!(world.state(c).await, PublicState::Waiting);
    applied(&world, flow, b, c).await;
    assert_eq!(world.state(c).await, PublicState::WaitingChildren);
    let groups = flows::groups(&world, flow, c).await;
    let states: Vec<_> = groups.iter().map(|group| (group.generation, group.group_state)).collect();
    assert_eq!(states, [(0, EdgeGroupState::Satisfied), (1, EdgeGroupState::Pending)]);
    flows::complete(&world, "b").await;
    assert_eq!(world.state(c).await, PublicState::Waiting);
}

async fn what_the_graph_says_about_an_execution(world: World) {
    let ask = async |id| world.backend.evaluate_flow_eligibility(id).await.unwrap();
    assert_eq!(ask(world.execution_id()).await, FlowEligibility::NotFound);
    assert_eq!(ask(world.create().await).await, FlowEligibility::Eligible);
    let graph = flows::submit(&world, flows::nodes(&["a", "b"]), flows::edges(&[("a", "b")])).await;
    assert_eq!(ask(graph.id("a")).await, FlowEligibility::Eligible);
    assert_eq!(ask(graph.id("b")).await, FlowEligibility::BlockedByDependencies);
    let handle = flows::claim_now(&world, "a").await;
    assert_eq!(ask(graph.id("a")).await, FlowEligibility::Owned);
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(ask(graph.id("a")).await, FlowEligibility::Terminal);
    assert_eq!(ask(graph.id("b")).await, FlowEligibility::Eligible);
}

async fn a_parent_whose_children_cannot_all_succeed_is_impossible(world: World) {
    let graph = flows::submit(&world, flows::nodes(&["a", "b"]), flows::edges(&[("a", "b")])).await;
    flows::complete(&world, "a").await;
    let handle = flows::claim_now(&world, "b").await;
    let child = flows::member(&world, graph.flow, "child").await;
    applied(&world, graph.flow, child, graph.id("b")).await;
    world.backend.delay(&handle, world.now().plus(10)).await.unwrap();
    let ask = async || world.backend.evaluate_flow_eligibility(graph.id("b")).await.unwrap();
    assert_eq!(ask().await, FlowEligibility::BlockedByDependencies);
    flows::fail(&world, "child").await;
    assert_eq!(ask().await, FlowEligibility::Impossible);
}
