//! Another worker takes over an execution whose lease was lost.

use std::collections::BTreeSet;

use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::leases::{
    IssueReclaimGrantArgs, IssueReclaimGrantOutcome, ReclaimExecutionArgs, ReclaimExecutionOutcome,
};
use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange, ReleaseReason};
use ff_core::capability::CapabilitySet;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::handle::HandleKind;
use ff_core::ids::{AttemptIndex, ExecutionId, LaneId};
use ff_core::partition::PartitionKey;
use ff_core::policy::{ExecutionPolicy, PolicyDocument, RoutingRequirements};
use ff_core::rules::retry::FailureClass;
use ff_core::state::{AttemptState, OwnershipState, PublicState, StreamCloseReason};

use crate::attempts::owner::{
    Form, Owner, closed, complete, fail, field, info, own, own_with, reclaim_args, reclaim_as, reclaim_request,
    retrying, revoke, run_out, take_as, timed, watch,
};
use crate::cases;
use crate::expect::{invalid, not_found, state};
use crate::harness::Damage;
use crate::world::{LEASE_MS, World, worker};

cases!["leases":
    a_lost_execution_is_granted_for_a_while,
    an_overdue_lease_is_marked_before_it_is_granted,
    only_a_lost_execution_is_granted,
    a_granted_execution_is_not_granted_again_while_the_grant_lives,
    a_worker_without_the_capabilities_gets_no_grant,
    malformed_capabilities_get_no_grant,
    an_execution_at_its_cap_gets_no_grant,
    refusals_of_a_grant_come_in_order,
    a_grant_of_no_length_is_refused,
    granting_a_missing_execution_finds_nothing,
    a_reclaim_starts_a_new_attempt,
    a_revoked_execution_is_reclaimed_too,
    a_reclaim_retires_the_lost_attempt,
    a_reclaim_arms_the_attempt_timeout_anew,
    a_reclaim_tells_its_watchers,
    a_reclaim_needs_a_grant,
    a_lapsed_grant_is_no_grant,
    the_grant_of_another_worker_is_no_grant,
    the_worker_that_lost_a_lease_needs_a_grant_too,
    a_grant_is_consumed_once,
    only_a_lost_execution_is_reclaimed,
    a_reclaim_of_another_attempt_is_refused_and_keeps_the_grant,
    a_reclaim_in_another_lane_is_refused,
    a_reclaim_beyond_the_cap_fails_the_execution,
    the_cap_is_the_policys_then_the_callers,
    a_stranger_cannot_fail_an_execution_at_its_cap,
    a_reclaim_of_no_length_is_refused,
    reclaiming_a_missing_execution_finds_nothing,
    retries_and_reclaims_are_counted_apart,
    reclaiming_an_unreadable_execution_is_reported_as_corruption,
];

async fn lost(world: &World) -> Owner {
    let owner = own(world).await;
    run_out(world, &owner);
    owner
}

async fn grant(world: &World, args: IssueReclaimGrantArgs) -> IssueReclaimGrantOutcome {
    world.backend.issue_reclaim_grant(args).await.unwrap()
}

async fn reclaim(world: &World, args: ReclaimExecutionArgs) -> ReclaimExecutionOutcome {
    world.backend.reclaim_execution(args).await.unwrap()
}

#[track_caller]
fn refused(outcome: IssueReclaimGrantOutcome) -> String {
    match outcome {
        IssueReclaimGrantOutcome::NotReclaimable { detail, .. } => detail,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[track_caller]
fn not_reclaimable(outcome: ReclaimExecutionOutcome) -> String {
    match outcome {
        ReclaimExecutionOutcome::NotReclaimable { detail, .. } => detail,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

async fn a_lost_execution_is_granted_for_a_while(world: World) {
    let owner = lost(&world).await;

    let outcome = grant(&world, reclaim_request(&world, &owner, "worker-b")).await;

    let IssueReclaimGrantOutcome::Granted(granted) = outcome else { panic!("{outcome:?}") };
    assert_eq!((granted.execution_id, granted.lane_id), (owner.id, world.lane()));
    assert_eq!(granted.partition_key, PartitionKey::from(owner.id.partition()));
    assert_eq!(granted.expires_at_ms, world.now().plus(5_000));
    assert_eq!(granted.kind, ff_core::backend::claims::GrantKind::Reclaim);
}

async fn an_overdue_lease_is_marked_before_it_is_granted(world: World) {
    let owner = lost(&world).await;
    grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
    let stored = info(&world, owner.id).await.state_vector;
    assert_eq!(stored.ownership_state, OwnershipState::LeaseExpiredReclaimable);
}

async fn only_a_lost_execution_is_granted(world: World) {
    let held = own(&world).await;
    let waiting = Owner { id: world.create().await, ..held.clone() };
    let ended = own(&world).await;
    complete(&world, Form::Handle, &ended, None).await.unwrap();
    for owner in [held, waiting, ended] {
        refused(grant(&world, reclaim_request(&world, &owner, "worker-b")).await);
    }
}

async fn a_granted_execution_is_not_granted_again_while_the_grant_lives(world: World) {
    let owner = lost(&world).await;
    grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
    for name in ["worker-b", "worker-c"] {
        let answer = world.backend.issue_reclaim_grant(reclaim_request(&world, &owner, name)).await;
        state(answer, StateKind::GrantAlreadyExists);
    }
    assert!(world.claim().await.is_none(), "a claim leaves granted work alone");
    world.pass(4_999).await;
    let answer = world.backend.issue_reclaim_grant(reclaim_request(&world, &owner, "worker-c")).await;
    state(answer, StateKind::GrantAlreadyExists);
    world.pass(1).await;
    reclaim_as(&world, &owner, "worker-c").await;
}

fn tokens(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// An execution that needs capabilities and whose lease ran out.
async fn lost_specialist(world: &World, policy: ExecutionPolicy) -> Owner {
    let required = RoutingRequirements { required_capabilities: tokens(&["gpu", "eu"]) };
    let policy = ExecutionPolicy { routing_requirements: Some(required), ..policy };
    let document = Some(PolicyDocument::from(&policy));
    let id = world.submit(CreateExecutionArgs { policy: document, ..world.submission() }).await;
    let (worker_id, instance) = worker("worker-a");
    let policy = ff_core::backend::claims::ClaimPolicy::new(worker_id, instance, LEASE_MS);
    let handle = world.backend.claim(&world.lane(), &CapabilitySet::new(["gpu", "eu"]), policy).await.unwrap().unwrap();
    let seen = world.backend.describe_execution(id).await.unwrap().unwrap();
    let (lease, attempt) = (seen.current_lease.unwrap(), seen.current_attempt.unwrap());
    let fence = ff_core::ids::FenceTriple {
        lease_id: Some(lease.lease_id),
        lease_epoch: Some(lease.lease_epoch),
        attempt_id: Some(attempt.attempt_id),
    };
    let owner = Owner { id, fence, index: attempt.attempt_index, handle, expires_at: lease.expires_at };
    run_out(world, &owner);
    owner
}

async fn a_worker_without_the_capabilities_gets_no_grant(world: World) {
    let owner = lost_specialist(&world, ExecutionPolicy::default()).await;
    let request = |names| IssueReclaimGrantArgs {
        worker_capabilities: tokens(names),
        ..reclaim_request(&world, &owner, "worker-b")
    };

    let detail = refused(grant(&world, request(&["cpu"])).await);

    assert_eq!(detail, "capability_mismatch: eu,gpu");
    let stamped = field(&world, owner.id, "last_capability_mismatch_at").await;
    assert_eq!(stamped, Some(world.now().to_string()));
    assert_eq!(refused(grant(&world, request(&["GPU", "eu"])).await), "capability_mismatch: gpu");
    let outcome = grant(&world, request(&["eu", "gpu", "more"])).await;
    assert!(matches!(outcome, IssueReclaimGrantOutcome::Granted(_)), "{outcome:?}");
}

async fn malformed_capabilities_get_no_grant(world: World) {
    let owner = lost(&world).await;
    for bad in ["", "a,b", "a b", "tab\t"] {
        let worker_capabilities = tokens(&[bad]);
        let args = IssueReclaimGrantArgs { worker_capabilities, ..reclaim_request(&world, &owner, "worker-b") };
        let answer = world.backend.issue_reclaim_grant(args).await;
        assert!(invalid(answer, ValidationKind::InvalidCapabilities).starts_with("worker:"));
    }
}

async fn an_execution_at_its_cap_gets_no_grant(world: World) {
    let policy = ExecutionPolicy { max_reclaim_count: Some(1), ..ExecutionPolicy::default() };
    let first = own_with(&world, &policy).await;
    run_out(&world, &first);
    let second = reclaim_as(&world, &first, "worker-b").await;
    run_out(&world, &second);

    let outcome = grant(&world, reclaim_request(&world, &second, "worker-c")).await;

    let expected = IssueReclaimGrantOutcome::ReclaimCapExceeded { execution_id: first.id, reclaim_count: 1 };
    assert_eq!(outcome, expected);
    assert_eq!(world.state(first.id).await, PublicState::Active, "nothing changed");
}

async fn refusals_of_a_grant_come_in_order(world: World) {
    let bad = tokens(&["a,b"]);
    let request = |owner: &Owner| IssueReclaimGrantArgs {
        worker_capabilities: bad.clone(),
        ..reclaim_request(&world, owner, "worker-b")
    };
    let nothing = IssueReclaimGrantArgs { grant_ttl_ms: 0, ..request(&lost(&world).await) };
    let missing = IssueReclaimGrantArgs { execution_id: world.execution_id(), ..nothing.clone() };
    invalid(world.backend.issue_reclaim_grant(missing.clone()).await, ValidationKind::InvalidInput);
    let missing = IssueReclaimGrantArgs { grant_ttl_ms: 1, ..missing };
    not_found(world.backend.issue_reclaim_grant(missing).await, Entity::Execution);

    let held = own(&world).await;
    refused(grant(&world, request(&held)).await);
    let capped = ExecutionPolicy { max_reclaim_count: Some(0), ..ExecutionPolicy::default() };
    let capped = own_with(&world, &capped).await;
    run_out(&world, &capped);
    let outcome = grant(&world, request(&capped)).await;
    assert!(matches!(outcome, IssueReclaimGrantOutcome::ReclaimCapExceeded { .. }), "{outcome:?}");

    let granted = lost(&world).await;
    grant(&world, reclaim_request(&world, &granted, "worker-c")).await;
    state(world.backend.issue_reclaim_grant(request(&granted)).await, StateKind::GrantAlreadyExists);
    let specialist = lost_specialist(&world, ExecutionPolicy::default()).await;
    invalid(world.backend.issue_reclaim_grant(request(&specialist)).await, ValidationKind::InvalidCapabilities);
}

async fn a_grant_of_no_length_is_refused(world: World) {
    let owner = lost(&world).await;
    for grant_ttl_ms in [0, u64::MAX] {
        let args = IssueReclaimGrantArgs { grant_ttl_ms, ..reclaim_request(&world, &owner, "worker-b") };
        invalid(world.backend.issue_reclaim_grant(args).await, ValidationKind::InvalidInput);
    }
}

async fn granting_a_missing_execution_finds_nothing(world: World) {
    let owner = Owner { id: world.execution_id(), ..own(&world).await };
    let answer = world.backend.issue_reclaim_grant(reclaim_request(&world, &owner, "worker-b")).await;
    not_found(answer, Entity::Execution);
    let id: ExecutionId = format!("{{fp:65535}}:{}", world.uuid()).parse().unwrap();
    let nowhere = Owner { id, ..owner };
    let answer = world.backend.issue_reclaim_grant(reclaim_request(&world, &nowhere, "worker-b")).await;
    invalid(answer, ValidationKind::InvalidInput);
}

async fn a_reclaim_starts_a_new_attempt(world: World) {
    let first = lost(&world).await;

    let second = reclaim_as(&world, &first, "worker-b").await;

    assert_eq!(second.handle.kind, HandleKind::Reclaimed);
    let seen = world.backend.describe_execution(first.id).await.unwrap().unwrap();
    let (lease, attempt) = (seen.current_lease.unwrap(), seen.current_attempt.unwrap());
    assert_eq!((lease.lease_id, lease.lease_epoch), (second.lease_id(), first.epoch().next()));
    assert_eq!(lease.worker_instance_id, worker("worker-b").1);
    assert_eq!(lease.expires_at, world.now().plus(LEASE_MS));
    assert_eq!((attempt.attempt_id, attempt.attempt_index), (second.attempt_id(), AttemptIndex(1)));
    assert_eq!(seen.total_attempt_count, 2);
    let stored = info(&world, first.id).await.state_vector;
    assert_eq!(stored.ownership_state, OwnershipState::Leased);
    assert_eq!(stored.attempt_state, AttemptState::RunningAttempt);
    assert_eq!(field(&world, first.id, "reclaim_count").await.as_deref(), Some("1"));
    complete(&world, Form::Handle, &second, None).await.unwrap();
}

async fn a_revoked_execution_is_reclaimed_too(world: World) {
    let first = own(&world).await;
    revoke(&world, &first).await;
    let second = reclaim_as(&world, &first, "worker-b").await;
    complete(&world, Form::Handle, &second, None).await.unwrap();
}

async fn a_reclaim_retires_the_lost_attempt(world: World) {
    let first = lost(&world).await;
    reclaim_as(&world, &first, "worker-b").await;
    assert_eq!(closed(&world, first.id, 0).await, Some(StreamCloseReason::Reclaimed));
    assert_eq!(closed(&world, first.id, 1).await, None);

    let first = own(&world).await;
    revoke(&world, &first).await;
    reclaim_as(&world, &first, "worker-b").await;
    assert_eq!(closed(&world, first.id, 0).await, Some(StreamCloseReason::LeaseRevoked));
}

async fn a_reclaim_arms_the_attempt_timeout_anew(world: World) {
    let first = own_with(&world, &timed(20_000, retrying(0))).await;
    world.pass(15_000).await;
    revoke(&world, &first).await;
    reclaim_as(&world, &first, "worker-b").await;
    world.pass(19_999).await;
    assert_eq!(world.state(first.id).await, PublicState::Active);
    world.pass(1).await;
    assert_eq!(world.state(first.id).await, PublicState::Expired);
}

async fn a_reclaim_tells_its_watchers(world: World) {
    let first = lost(&world).await;
    world.backend.mark_lease_expired_if_due(first.id).await.unwrap();
    let watched = watch(&world).await;

    let second = reclaim_as(&world, &first, "worker-b").await;

    let change = LeaseChange::Reclaimed {
        prev_lease_epoch: first.epoch(),
        new_lease_id: second.lease_id(),
        new_lease_epoch: second.epoch(),
        attempt_index: AttemptIndex(1),
        new_owner: worker("worker-b").1,
    };
    let seen = watched.seen(&world).await;
    assert_eq!((seen.leases, seen.ends), (vec![(first.id, change)], vec![]));
}

async fn a_reclaim_needs_a_grant(world: World) {
    let owner = lost(&world).await;
    let outcome = reclaim(&world, reclaim_args(&world, &owner, "worker-b")).await;
    assert_eq!(outcome, ReclaimExecutionOutcome::GrantNotFound { execution_id: owner.id });
}

async fn a_lapsed_grant_is_no_grant(world: World) {
    let owner = lost(&world).await;
    grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
    world.advance(5_000);
    let outcome = reclaim(&world, reclaim_args(&world, &owner, "worker-b")).await;
    assert_eq!(outcome, ReclaimExecutionOutcome::GrantNotFound { execution_id: owner.id });
}

async fn the_grant_of_another_worker_is_no_grant(world: World) {
    let owner = lost(&world).await;
    grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
    let outcome = reclaim(&world, reclaim_args(&world, &owner, "worker-c")).await;
    assert_eq!(outcome, ReclaimExecutionOutcome::GrantNotFound { execution_id: owner.id });
    let other_process =
        ReclaimExecutionArgs { worker_instance_id: worker("worker-c").1, ..reclaim_args(&world, &owner, "worker-b") };
    let outcome = reclaim(&world, other_process).await;
    assert_eq!(outcome, ReclaimExecutionOutcome::GrantNotFound { execution_id: owner.id });
    let outcome = reclaim(&world, reclaim_args(&world, &owner, "worker-b")).await;
    assert!(matches!(outcome, ReclaimExecutionOutcome::Claimed { .. }), "{outcome:?}");
}

async fn the_worker_that_lost_a_lease_needs_a_grant_too(world: World) {
    let owner = lost(&world).await;
    let outcome = reclaim(&world, reclaim_args(&world, &owner, "worker-a")).await;
    assert_eq!(outcome, ReclaimExecutionOutcome::GrantNotFound { execution_id: owner.id });
}

async fn a_grant_is_consumed_once(world: World) {
    let first = lost(&world).await;
    let second = reclaim_as(&world, &first, "worker-b").await;
    not_reclaimable(reclaim(&world, reclaim_args(&world, &first, "worker-b")).await);
    revoke(&world, &second).await;
    let outcome = reclaim(&world, reclaim_args(&world, &second, "worker-b")).await;
    assert_eq!(outcome, ReclaimExecutionOutcome::GrantNotFound { execution_id: first.id });
}

async fn only_a_lost_execution_is_reclaimed(world: World) {
    let held = own(&world).await;
    let waiting = Owner { id: world.create().await, ..held.clone() };
    let ended = own(&world).await;
    complete(&world, Form::Handle, &ended, None).await.unwrap();
    for owner in [held, waiting, ended] {
        not_reclaimable(reclaim(&world, reclaim_args(&world, &owner, "worker-b")).await);
    }
}

async fn a_reclaim_of_another_attempt_is_refused_and_keeps_the_grant(world: World) {
    let owner = lost(&world).await;
    grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
    let args = reclaim_args(&world, &owner, "worker-b");
    let other = ReclaimExecutionArgs { current_attempt_index: AttemptIndex(1), ..args.clone() };
    assert_eq!(not_reclaimable(reclaim(&world, other).await), "attempt_moved");
    let outcome = reclaim(&world, args).await;
    assert!(matches!(outcome, ReclaimExecutionOutcome::Claimed { .. }), "{outcome:?}");
}

async fn a_reclaim_in_another_lane_is_refused(world: World) {
    let owner = lost(&world).await;
    let lane_id = LaneId::new("elsewhere").unwrap();
    let request = reclaim_request(&world, &owner, "worker-b");
    refused(grant(&world, IssueReclaimGrantArgs { lane_id: lane_id.clone(), ..request.clone() }).await);
    grant(&world, request).await;
    let args = reclaim_args(&world, &owner, "worker-b");
    not_reclaimable(reclaim(&world, ReclaimExecutionArgs { lane_id, ..args }).await);
}

async fn a_reclaim_beyond_the_cap_fails_the_execution(world: World) {
    let first = lost(&world).await;
    let second = reclaim_as(&world, &first, "worker-b").await;
    run_out(&world, &second);
    grant(&world, reclaim_request(&world, &second, "worker-c")).await;
    let watched = watch(&world).await;

    let args = ReclaimExecutionArgs { max_reclaim_count: Some(1), ..reclaim_args(&world, &second, "worker-c") };
    let outcome = reclaim(&world, args).await;

    let expected = ReclaimExecutionOutcome::ReclaimCapExceeded { execution_id: first.id, reclaim_count: 1 };
    assert_eq!(outcome, expected);
    assert_eq!(world.state(first.id).await, PublicState::Failed);
    assert_eq!(field(&world, first.id, "failure_reason").await.as_deref(), Some("max_reclaims_exceeded"));
    assert_eq!(closed(&world, first.id, 1).await, Some(StreamCloseReason::LeaseExpired));
    let seen = watched.seen(&world).await;
    assert_eq!(seen.ends, [(first.id, CompletionOutcome::Failed)]);
    let (lease_id, lease_epoch) = (second.lease_id(), second.epoch());
    let change = LeaseChange::Released { lease_id, lease_epoch, reason: ReleaseReason::FailedTerminal };
    assert_eq!(seen.leases, [(first.id, change)]);
    not_reclaimable(reclaim(&world, reclaim_args(&world, &second, "worker-c")).await);
}

async fn the_cap_is_the_policys_then_the_callers(world: World) {
    let policy = ExecutionPolicy { max_reclaim_count: Some(5), ..ExecutionPolicy::default() };
    let owner = own_with(&world, &policy).await;
    run_out(&world, &owner);
    grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
    let args = ReclaimExecutionArgs { max_reclaim_count: Some(0), ..reclaim_args(&world, &owner, "worker-b") };
    let outcome = reclaim(&world, args).await;
    assert!(matches!(outcome, ReclaimExecutionOutcome::Claimed { .. }), "{outcome:?}");

    for policy in [None, Some(ExecutionPolicy::default())] {
        let owner = match &policy {
            Some(policy) => own_with(&world, policy).await,
            None => own(&world).await,
        };
        run_out(&world, &owner);
        grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
        let args = ReclaimExecutionArgs { max_reclaim_count: Some(0), ..reclaim_args(&world, &owner, "worker-b") };
        let expected = ReclaimExecutionOutcome::ReclaimCapExceeded { execution_id: owner.id, reclaim_count: 0 };
        assert_eq!(reclaim(&world, args).await, expected);
    }
}

async fn a_stranger_cannot_fail_an_execution_at_its_cap(world: World) {
    let owner = lost(&world).await;
    let capped = |name| ReclaimExecutionArgs { max_reclaim_count: Some(0), ..reclaim_args(&world, &owner, name) };
    let no_grant = ReclaimExecutionOutcome::GrantNotFound { execution_id: owner.id };
    assert_eq!(reclaim(&world, capped("worker-b")).await, no_grant);
    grant(&world, reclaim_request(&world, &owner, "worker-b")).await;
    assert_eq!(reclaim(&world, capped("worker-c")).await, no_grant);
    let moved = ReclaimExecutionArgs { current_attempt_index: AttemptIndex(9), ..capped("worker-b") };
    not_reclaimable(reclaim(&world, moved).await);
    assert_eq!(world.state(owner.id).await, PublicState::Active);
}

async fn a_reclaim_of_no_length_is_refused(world: World) {
    let missing = Owner { id: world.execution_id(), ..own(&world).await };
    for lease_ttl_ms in [0, u64::MAX] {
        let args = ReclaimExecutionArgs { lease_ttl_ms, ..reclaim_args(&world, &missing, "worker-b") };
        invalid(world.backend.reclaim_execution(args).await, ValidationKind::InvalidInput);
    }
}

async fn reclaiming_a_missing_execution_finds_nothing(world: World) {
    let missing = Owner { id: world.execution_id(), ..own(&world).await };
    let answer = world.backend.reclaim_execution(reclaim_args(&world, &missing, "worker-b")).await;
    not_found(answer, Entity::Execution);
}

async fn retries_and_reclaims_are_counted_apart(world: World) {
    let first = own_with(&world, &retrying(1)).await;
    run_out(&world, &first);
    let second = reclaim_as(&world, &first, "worker-b").await;
    fail(&world, Form::Handle, &second, FailureClass::Transient).await.unwrap();
    world.pass(1_000).await;
    let third = take_as(&world, first.id, 2, "worker-a").await;
    assert_eq!(third.index, AttemptIndex(2));
    assert_eq!(third.epoch().0, 3);
    fail(&world, Form::Handle, &third, FailureClass::Transient).await.unwrap();
    assert_eq!(world.state(first.id).await, PublicState::Failed);
    assert_eq!(field(&world, first.id, "retry_count").await.as_deref(), Some("1"));
    assert_eq!(field(&world, first.id, "reclaim_count").await.as_deref(), Some("1"));
}

async fn reclaiming_an_unreadable_execution_is_reported_as_corruption(world: World) {
    let owner = lost(&world).await;
    world.damage(Damage::Execution(owner.id)).await;
    let answer = world.backend.issue_reclaim_grant(reclaim_request(&world, &owner, "worker-b")).await;
    invalid(answer, ValidationKind::Corruption);
    let answer = world.backend.reclaim_execution(reclaim_args(&world, &owner, "worker-b")).await;
    invalid(answer, ValidationKind::Corruption);
    invalid(world.backend.mark_lease_expired_if_due(owner.id).await, ValidationKind::Corruption);
}
