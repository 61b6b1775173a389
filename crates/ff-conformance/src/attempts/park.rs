//! An attempt gives its lease back and goes on later.

use ff_core::TimestampMs;
use ff_core::backend::dependencies::{
    ApplyDependencyToChildArgs, ApplyDependencyToChildResult, DependencyKind, StageDependencyEdgeArgs,
    StageDependencyEdgeResult,
};
use ff_core::backend::flows::{AddExecutionToFlowArgs, CreateFlowArgs};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::subscriptions::{LeaseChange, ReleaseReason};
use ff_core::handle::HandleKind;
use ff_core::ids::{EdgeId, ExecutionId, FlowId};
use ff_core::rules::retry::FailureClass;
use ff_core::state::{
    AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState, StateVector,
    TerminalOutcome,
};

use super::owner::{
    Act, Form, Owner, UNTIL, act, cancel, complete, fail, info, own, own_with, resume_as, retrying, take_as, timed,
    watch,
};
use crate::cases;
use crate::world::World;

cases!["attempts":
    a_delayed_attempt_waits_for_its_time,
    a_delayed_attempt_goes_on_as_the_same_attempt,
    a_delay_to_the_past_means_now,
    a_delay_gives_the_lease_back_in_order,
    a_deadline_ends_a_delayed_execution,
    a_delay_does_not_move_the_deadline,
    a_parked_attempt_does_not_time_out_and_keeps_the_time_it_had_left,
    waiting_for_no_children_goes_on_at_once,
    waiting_for_children_gives_the_lease_back_in_order,
    an_attempt_waits_until_its_child_ends,
    a_failed_child_is_an_end_too,
    a_child_that_ended_before_is_not_waited_for,
    each_wait_is_for_the_children_spawned_since_the_last,
    a_required_child_that_failed_skips_the_waiting_parent,
    a_required_child_that_failed_before_skips_a_parent_that_then_waits,
    a_delay_ends_at_the_dependencies_that_are_still_open,
];

const INTERRUPTED: AttemptState = AttemptState::AttemptInterrupted;

fn parked(eligibility: EligibilityState, reason: BlockingReason) -> StateVector {
    StateVector {
        lifecycle_phase: LifecyclePhase::Runnable,
        ownership_state: OwnershipState::Unowned,
        eligibility_state: eligibility,
        blocking_reason: reason,
        terminal_outcome: TerminalOutcome::None,
        attempt_state: INTERRUPTED,
    }
}

async fn a_delayed_attempt_waits_for_its_time(world: World) {
    let owner = own(&world).await;

    world.backend.delay(&owner.handle, world.now().plus(1_000)).await.unwrap();

    let expected = parked(EligibilityState::NotEligibleUntilTime, BlockingReason::WaitingForDelay);
    let info = info(&world, owner.id).await;
    assert_eq!((info.state_vector, info.public_state), (expected, PublicState::Delayed));
    world.pass(999).await;
    assert!(world.claim().await.is_none());
    world.pass(1).await;
    assert_eq!(world.state(owner.id).await, PublicState::Waiting);
    let handle = world.claim().await.expect("the delay is over");
    assert_eq!(handle.kind, HandleKind::Resumed);
}

async fn a_delayed_attempt_goes_on_as_the_same_attempt(world: World) {
    let owner = own(&world).await;
    world.backend.delay(&owner.handle, world.now().plus(1_000)).await.unwrap();
    world.pass(1_000).await;

    let again = resume_as(&world, &owner, "worker-b").await;

    assert_eq!((again.attempt_id(), again.index), (owner.attempt_id(), owner.index));
    assert_eq!(again.epoch(), owner.epoch().next());
    assert_eq!(world.backend.read_total_attempt_count(owner.id).await.unwrap(), 1);
    complete(&world, Form::Handle, &again, None).await.unwrap();
}

async fn a_delay_to_the_past_means_now(world: World) {
    for until in [TimestampMs(0), TimestampMs(-1), world.now()] {
        let owner = own(&world).await;
        world.backend.delay(&owner.handle, until).await.unwrap();
        assert_eq!(world.state(owner.id).await, PublicState::Delayed);
        world.pass(0).await;
        assert_eq!(world.state(owner.id).await, PublicState::Waiting);
        let again = resume_as(&world, &owner, "worker-a").await;
        complete(&world, Form::Handle, &again, None).await.unwrap();
    }
}

async fn a_delay_gives_the_lease_back_in_order(world: World) {
    let owner = own(&world).await;
    let watched = watch(&world).await;
    act(&world, Act::Delay, Form::Handle, &owner).await.unwrap();
    let seen = watched.seen(&world).await;
    let (lease_id, lease_epoch) = (owner.lease_id(), owner.epoch());
    let change = LeaseChange::Released { lease_id, lease_epoch, reason: ReleaseReason::WorkerDelay };
    assert_eq!((seen.leases, seen.ends), (vec![(owner.id, change)], vec![]));
}

async fn a_deadline_ends_a_delayed_execution(world: World) {
    let deadline = Some(world.now().plus(5_000));
    let id = world.submit(CreateExecutionArgs { execution_deadline_at: deadline, ..world.submission() }).await;
    let owner = take_as(&world, id, 0, "worker-a").await;
    world.backend.delay(&owner.handle, UNTIL).await.unwrap();

    world.pass(4_999).await;
    assert_eq!(world.state(id).await, PublicState::Delayed);
    world.pass(1).await;

    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn a_delay_does_not_move_the_deadline(world: World) {
    let deadline = Some(world.now().plus(5_000));
    let id = world.submit(CreateExecutionArgs { execution_deadline_at: deadline, ..world.submission() }).await;
    let owner = take_as(&world, id, 0, "worker-a").await;
    world.backend.delay(&owner.handle, world.now().plus(1_000)).await.unwrap();
    world.pass(1_000).await;
    resume_as(&world, &owner, "worker-a").await;
    assert_eq!(world.state(id).await, PublicState::Active);

    world.pass(4_000).await;

    assert_eq!(world.state(id).await, PublicState::Expired);
}

async fn a_parked_attempt_does_not_time_out_and_keeps_the_time_it_had_left(world: World) {
    let owner = own_with(&world, &timed(10_000, retrying(0))).await;
    world.pass(4_000).await;
    world.backend.delay(&owner.handle, world.now().plus(20_000)).await.unwrap();
    world.pass(20_000).await;
    assert_eq!(world.state(owner.id).await, PublicState::Waiting);

    resume_as(&world, &owner, "worker-a").await;

    world.pass(5_999).await;
    assert_eq!(world.state(owner.id).await, PublicState::Active);
    world.pass(1).await;
    assert_eq!(world.state(owner.id).await, PublicState::Expired);
}

async fn waiting_for_no_children_goes_on_at_once(world: World) {
    let owner = own(&world).await;

    world.backend.wait_children(&owner.handle).await.unwrap();

    let expected = parked(EligibilityState::EligibleNow, BlockingReason::WaitingForWorker);
    assert_eq!(info(&world, owner.id).await.state_vector, expected);
    let again = resume_as(&world, &owner, "worker-b").await;
    assert_eq!((again.attempt_id(), again.index), (owner.attempt_id(), owner.index));
}

async fn waiting_for_children_gives_the_lease_back_in_order(world: World) {
    let owner = own(&world).await;
    let watched = watch(&world).await;
    act(&world, Act::WaitChildren, Form::Handle, &owner).await.unwrap();
    let seen = watched.seen(&world).await;
    let (lease_id, lease_epoch) = (owner.lease_id(), owner.epoch());
    let change = LeaseChange::Released { lease_id, lease_epoch, reason: ReleaseReason::WaitingChildren };
    assert_eq!((seen.leases, seen.ends), (vec![(owner.id, change)], vec![]));
}

// Families.

/// A flow in which one member waits for others.
struct Family {
    flow: FlowId,
    parent: Owner,
    revision: u64,
}

impl Family {
    async fn new(world: &World) -> Self {
        let flow = FlowId::from_uuid(world.uuid());
        let args = CreateFlowArgs { flow_id: flow, flow_kind: "family".to_owned(), namespace: world.namespace() };
        world.backend.create_flow(args).await.unwrap();
        let id = join(world, flow).await;
        let parent = take_as(world, id, 0, "worker-a").await;
        let revision = world.backend.describe_flow(flow).await.unwrap().unwrap().graph_revision;
        Self { flow, parent, revision }
    }

    /// Spawns a child that the parent depends on.
    async fn spawn(&mut self, world: &World, kind: DependencyKind) -> Owner {
        let child = join(world, self.flow).await;
        let described = world.backend.describe_flow(self.flow).await.unwrap().unwrap();
        let edge_id = EdgeId::from_uuid(world.uuid());
        let args = StageDependencyEdgeArgs {
            flow_id: self.flow,
            edge_id,
            upstream_execution_id: child,
            downstream_execution_id: self.parent.id,
            dependency_kind: kind.as_str().to_owned(),
            data_passing_ref: None,
            expected_graph_revision: described.graph_revision,
        };
        let StageDependencyEdgeResult::Staged { new_graph_revision, .. } =
            world.backend.stage_dependency_edge(args).await.unwrap();
        self.revision = new_graph_revision;
        let args = ApplyDependencyToChildArgs {
            flow_id: self.flow,
            edge_id,
            upstream_execution_id: child,
            downstream_execution_id: self.parent.id,
        };
        let applied = world.backend.apply_dependency_to_child(args).await.unwrap();
        assert!(matches!(applied, ApplyDependencyToChildResult::Applied { .. }), "{applied:?}");
        take_as(world, child, 0, "worker-b").await
    }

    async fn wait(&self, world: &World) -> PublicState {
        world.backend.wait_children(&self.parent.handle).await.unwrap();
        world.state(self.parent.id).await
    }
}

async fn join(world: &World, flow: FlowId) -> ExecutionId {
    let id = world.member_id(flow);
    world.submit(CreateExecutionArgs { execution_id: Some(id), ..world.submission() }).await;
    let args = AddExecutionToFlowArgs { flow_id: flow, execution_id: id };
    world.backend.add_execution_to_flow(args).await.unwrap();
    id
}

async fn an_attempt_waits_until_its_child_ends(world: World) {
    let mut family = Family::new(&world).await;
    let first = family.spawn(&world, DependencyKind::Finished).await;
    let second = family.spawn(&world, DependencyKind::Finished).await;

    assert_eq!(family.wait(&world).await, PublicState::WaitingChildren);

    let expected = parked(EligibilityState::BlockedByDependencies, BlockingReason::WaitingForChildren);
    assert_eq!(info(&world, family.parent.id).await.state_vector, expected);
    complete(&world, Form::Handle, &first, None).await.unwrap();
    world.pass(0).await;
    assert_eq!(world.state(family.parent.id).await, PublicState::WaitingChildren);
    complete(&world, Form::Handle, &second, None).await.unwrap();
    world.pass(0).await;
    assert_eq!(world.state(family.parent.id).await, PublicState::Waiting);
    let again = resume_as(&world, &family.parent, "worker-a").await;
    assert_eq!(again.attempt_id(), family.parent.attempt_id());
}

async fn a_failed_child_is_an_end_too(world: World) {
    let mut family = Family::new(&world).await;
    let failing = family.spawn(&world, DependencyKind::Finished).await;
    let cancelled = family.spawn(&world, DependencyKind::Finished).await;
    family.wait(&world).await;

    fail(&world, Form::Handle, &failing, FailureClass::Permanent).await.unwrap();
    cancel(&world, Form::Handle, &cancelled).await.unwrap();
    world.pass(0).await;

    assert_eq!(world.state(family.parent.id).await, PublicState::Waiting);
}

async fn a_child_that_ended_before_is_not_waited_for(world: World) {
    let mut family = Family::new(&world).await;
    let child = family.spawn(&world, DependencyKind::Finished).await;
    fail(&world, Form::Handle, &child, FailureClass::Permanent).await.unwrap();
    world.pass(0).await;
    assert_eq!(world.state(family.parent.id).await, PublicState::Active, "a running parent is left alone");

    assert_eq!(family.wait(&world).await, PublicState::Waiting);
}

async fn each_wait_is_for_the_children_spawned_since_the_last(world: World) {
    let mut family = Family::new(&world).await;
    for _ in 0..3 {
        let child = family.spawn(&world, DependencyKind::Finished).await;
        assert_eq!(family.wait(&world).await, PublicState::WaitingChildren);
        complete(&world, Form::Handle, &child, None).await.unwrap();
        world.pass(0).await;
        assert_eq!(world.state(family.parent.id).await, PublicState::Waiting);
        family.parent = resume_as(&world, &family.parent, "worker-a").await;
    }
    assert_eq!(family.wait(&world).await, PublicState::Waiting, "nothing was spawned since");
}

async fn a_required_child_that_failed_skips_the_waiting_parent(world: World) {
    let mut family = Family::new(&world).await;
    let child = family.spawn(&world, DependencyKind::SuccessOnly).await;
    assert_eq!(family.wait(&world).await, PublicState::WaitingChildren);

    fail(&world, Form::Handle, &child, FailureClass::Permanent).await.unwrap();
    world.pass(0).await;

    assert_eq!(world.state(family.parent.id).await, PublicState::Skipped);
}

async fn a_required_child_that_failed_before_skips_a_parent_that_then_waits(world: World) {
    let mut family = Family::new(&world).await;
    let first = family.spawn(&world, DependencyKind::Finished).await;
    complete(&world, Form::Handle, &first, None).await.unwrap();
    assert_eq!(family.wait(&world).await, PublicState::Waiting);
    family.parent = resume_as(&world, &family.parent, "worker-a").await;
    let second = family.spawn(&world, DependencyKind::SuccessOnly).await;
    fail(&world, Form::Handle, &second, FailureClass::Permanent).await.unwrap();
    world.pass(0).await;
    assert_eq!(world.state(family.parent.id).await, PublicState::Active, "a running parent is left alone");

    assert_eq!(family.wait(&world).await, PublicState::Skipped);

    let stored = info(&world, family.parent.id).await.state_vector;
    assert_eq!(stored.attempt_state, AttemptState::AttemptTerminal);
    assert_eq!(stored.ownership_state, OwnershipState::Unowned);
}

async fn a_delay_ends_at_the_dependencies_that_are_still_open(world: World) {
    let mut family = Family::new(&world).await;
    let child = family.spawn(&world, DependencyKind::Finished).await;
    world.backend.delay(&family.parent.handle, world.now().plus(1_000)).await.unwrap();

    world.pass(1_000).await;

    assert_eq!(world.state(family.parent.id).await, PublicState::WaitingChildren);
    complete(&world, Form::Handle, &child, None).await.unwrap();
    world.pass(0).await;
    assert_eq!(world.state(family.parent.id).await, PublicState::Waiting);
    resume_as(&world, &family.parent, "worker-a").await;
}
