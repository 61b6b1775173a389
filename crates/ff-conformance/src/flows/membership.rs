//! Creating flows and adding members.

use ff_core::backend::flows::{
    AddExecutionToFlowArgs, AddExecutionToFlowResult, CancelFlowPolicy, CancelFlowWait, CreateFlowArgs,
    CreateFlowResult, SubmitFlowArgs,
};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::quotas::CreateQuotaPolicyArgs;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::{ExecutionId, FlowId, Namespace, QuotaPolicyId};
use ff_core::state::{FlowState, PublicState};

use super::kit;
use crate::{World, cases, expect};

cases!["flows":
    a_new_flow_is_open_and_empty,
    creating_a_flow_again_changes_nothing,
    a_flow_needs_a_kind,
    a_member_knows_its_flow_and_is_counted,
    adding_a_member_again_changes_nothing,
    an_execution_is_a_member_of_one_flow_at_most,
    an_execution_of_another_partition_cannot_become_a_member,
    refused_memberships_are_explained_in_order,
    an_execution_of_another_namespace_looks_absent_to_a_flow,
    executions_that_run_or_are_over_may_become_members,
    a_quota_of_a_flow_limits_its_members,
];

fn args(world: &World, flow_id: FlowId) -> CreateFlowArgs {
    CreateFlowArgs { flow_id, flow_kind: "pipeline".to_owned(), namespace: world.namespace() }
}

async fn a_new_flow_is_open_and_empty(world: World) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let created = world.backend.create_flow(args(&world, flow_id)).await.unwrap();
    assert_eq!(created, CreateFlowResult::Created { flow_id });
    let flow = world.backend.describe_flow(flow_id).await.unwrap().unwrap();
    assert_eq!((flow.flow_kind.as_str(), flow.namespace), ("pipeline", world.namespace()));
    assert_eq!(flow.public_flow_state, FlowState::Open);
    assert_eq!((flow.graph_revision, flow.node_count, flow.edge_count), (0, 0, 0));
    assert_eq!((flow.created_at, flow.last_mutation_at), (world.now(), world.now()));
    assert_eq!((flow.cancelled_at, flow.cancel_reason, flow.cancellation_policy), (None, None, None));
    assert!(flow.tags.is_empty() && flow.edge_groups.is_empty() && flow.summary.is_none());
}

async fn creating_a_flow_again_changes_nothing(world: World) {
    let flow_id = kit::flow(&world).await;
    let before = world.backend.describe_flow(flow_id).await.unwrap();
    world.advance(5);
    let other = CreateFlowArgs {
        flow_kind: "other".to_owned(),
        namespace: Namespace::new("elsewhere").unwrap(),
        ..args(&world, flow_id)
    };
    let again = world.backend.create_flow(other).await.unwrap();
    assert_eq!(again, CreateFlowResult::AlreadySatisfied { flow_id });
    assert_eq!(world.backend.describe_flow(flow_id).await.unwrap(), before);
}

async fn a_flow_needs_a_kind(world: World) {
    let flow_id = FlowId::from_uuid(world.uuid());
    for kind in [String::new(), "a\nb".to_owned(), "x".repeat(257)] {
        let args = CreateFlowArgs { flow_kind: kind, ..args(&world, flow_id) };
        expect::invalid(world.backend.create_flow(args).await, ValidationKind::InvalidInput);
    }
    assert_eq!(world.backend.describe_flow(flow_id).await.unwrap(), None);
}

async fn a_member_knows_its_flow_and_is_counted(world: World) {
    let flow_id = kit::flow(&world).await;
    let execution_id = kit::beside(&world, flow_id, "a").await;
    world.advance(5);
    let added = world.backend.add_execution_to_flow(AddExecutionToFlowArgs { flow_id, execution_id }).await.unwrap();
    assert_eq!(added, AddExecutionToFlowResult::Added { execution_id, new_node_count: 1 });
    assert_eq!(world.backend.resolve_execution_flow_id(execution_id).await.unwrap(), Some(flow_id));
    kit::member(&world, flow_id, "b").await;
    let flow = world.backend.describe_flow(flow_id).await.unwrap().unwrap();
    assert_eq!((flow.node_count, flow.graph_revision, flow.last_mutation_at), (2, 2, world.now()));
    assert_eq!(world.state(execution_id).await, PublicState::Waiting);
}

async fn adding_a_member_again_changes_nothing(world: World) {
    let flow_id = kit::flow(&world).await;
    let execution_id = kit::member(&world, flow_id, "a").await;
    let again = world.backend.add_execution_to_flow(AddExecutionToFlowArgs { flow_id, execution_id }).await.unwrap();
    assert_eq!(again, AddExecutionToFlowResult::AlreadyMember { execution_id, node_count: 1 });
    assert_eq!(kit::revision(&world, flow_id).await, 1);
}

/// Another flow in the same partition.
async fn neighbour(world: &World, flow: FlowId) -> FlowId {
    loop {
        let other = FlowId::from_uuid(world.uuid());
        if world.member_id(other).partition() == world.member_id(flow).partition() {
            world.backend.create_flow(args(world, other)).await.unwrap();
            return other;
        }
    }
}

async fn an_execution_is_a_member_of_one_flow_at_most(world: World) {
    let flow = kit::flow(&world).await;
    let execution_id = kit::member(&world, flow, "a").await;
    let other = neighbour(&world, flow).await;
    let args = AddExecutionToFlowArgs { flow_id: other, execution_id };
    expect::conflict(world.backend.add_execution_to_flow(args).await, "execution_already_in_flow");
    assert_eq!(world.backend.resolve_execution_flow_id(execution_id).await.unwrap(), Some(flow));
    assert_eq!(kit::revision(&world, other).await, 0);
}

async fn an_execution_of_another_partition_cannot_become_a_member(world: World) {
    let flow_id = FlowId::from_uuid(world.uuid());
    let here = world.member_id(flow_id).partition().index();
    let execution_id = ExecutionId::new((here + 1) % 256, world.uuid());
    // Reported before the missing flow.
    let args = AddExecutionToFlowArgs { flow_id, execution_id };
    expect::invalid(world.backend.add_execution_to_flow(args).await, ValidationKind::InvalidInput);
}

async fn refused_memberships_are_explained_in_order(world: World) {
    let missing = FlowId::from_uuid(world.uuid());
    let args = AddExecutionToFlowArgs { flow_id: missing, execution_id: world.member_id(missing) };
    expect::not_found(world.backend.add_execution_to_flow(args).await, Entity::Flow);

    let flow_id = kit::flow(&world).await;
    let args = AddExecutionToFlowArgs { flow_id, execution_id: world.member_id(flow_id) };
    expect::not_found(world.backend.add_execution_to_flow(args).await, Entity::Execution);

    let no_wait = CancelFlowWait::NoWait {};
    world.backend.cancel_flow(flow_id, CancelFlowPolicy::FlowOnly, no_wait).await.unwrap();
    expect::state(world.backend.add_execution_to_flow(args).await, StateKind::FlowAlreadyTerminal);
}

async fn an_execution_of_another_namespace_looks_absent_to_a_flow(world: World) {
    let flow_id = kit::flow(&world).await;
    let execution_id = world.member_id(flow_id);
    let stranger = Namespace::new("elsewhere").unwrap();
    world.submit(CreateExecutionArgs::new(execution_id, stranger, world.lane(), "step")).await;
    let args = AddExecutionToFlowArgs { flow_id, execution_id };
    expect::not_found(world.backend.add_execution_to_flow(args).await, Entity::Execution);
    assert_eq!(world.backend.resolve_execution_flow_id(execution_id).await.unwrap(), None);
}

async fn executions_that_run_or_are_over_may_become_members(world: World) {
    let flow_id = kit::flow(&world).await;
    let running = kit::beside(&world, flow_id, "running").await;
    let handle = kit::claim_now(&world, "running").await;
    let over = kit::beside(&world, flow_id, "over").await;
    kit::complete(&world, "over").await;
    for execution_id in [running, over] {
        world.backend.add_execution_to_flow(AddExecutionToFlowArgs { flow_id, execution_id }).await.unwrap();
    }
    assert_eq!(world.state(running).await, PublicState::Active);
    assert_eq!(world.state(over).await, PublicState::Completed);
    world.backend.complete(&handle, None).await.unwrap();
}

async fn a_quota_of_a_flow_limits_its_members(world: World) {
    let submitted = FlowId::from_uuid(world.uuid());
    let grown = kit::flow(&world).await;
    for flow in [submitted, grown] {
        let quota = CreateQuotaPolicyArgs {
            quota_policy_id: QuotaPolicyId::from_uuid(world.uuid()),
            namespace: world.namespace(),
            scope_type: "flow".to_owned(),
            scope_id: flow.to_string(),
            window_seconds: 0,
            max_requests_per_window: 0,
            max_concurrent: 1,
            jitter_ms: 0,
        };
        world.backend.create_quota_policy(quota).await.unwrap();
    }
    let args = kit::graph(&world, kit::nodes(&["a", "b"]), Vec::new());
    world.backend.submit_flow(SubmitFlowArgs { flow_id: Some(submitted), ..args }).await.unwrap();
    kit::member(&world, grown, "c").await;
    kit::member(&world, grown, "d").await;
    for (first, second) in [("a", "b"), ("c", "d")] {
        let handle = kit::claim_now(&world, first).await;
        assert!(kit::claim(&world, second).await.is_none());
        world.backend.complete(&handle, None).await.unwrap();
        world.run_due().await;
        kit::complete(&world, second).await;
    }
}
