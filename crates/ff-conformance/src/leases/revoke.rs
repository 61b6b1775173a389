//! An operator takes a lease away.

use ff_core::backend::leases::{RevokeLeaseArgs, RevokeLeaseResult, RevokeNotNeeded};
use ff_core::backend::subscriptions::{LeaseChange, RevokedBy};
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::{ExecutionId, LeaseId, WorkerInstanceId};
use ff_core::state::{AttemptState, BlockingReason, LifecyclePhase, OwnershipState, PublicState, StreamCloseReason};

use crate::attempts::owner::{
    Act, CALLS, Form, Owner, act, closed, complete, field, info, not_active, own, own_with, retrying, revoke, run_out,
    timed, watch,
};
use crate::cases;
use crate::expect::{invalid, not_found, state};
use crate::harness::Damage;
use crate::world::{LEASE_MS, World};

cases!["leases":
    a_revoked_lease_waits_for_a_reclaim,
    a_revocation_may_name_the_lease_and_the_worker,
    revoking_a_missing_execution_finds_nothing,
    revoking_what_is_not_active_is_refused,
    revoking_twice_is_not_needed,
    revoking_an_expired_lease_is_not_needed,
    revoking_another_lease_is_refused,
    revoking_from_another_worker_is_not_needed,
    another_lease_is_reported_before_another_worker,
    a_revocation_tells_its_watchers_once,
    a_revocation_closes_the_stream,
    a_revoked_execution_is_not_handed_out_by_claims,
    a_revoked_attempt_neither_expires_nor_times_out,
    nothing_of_the_old_owner_succeeds_after_a_revocation,
    a_long_or_unprintable_reason_for_a_revocation_is_refused,
    revoking_an_unreadable_execution_is_reported_as_corruption,
];

fn args(id: ExecutionId) -> RevokeLeaseArgs {
    RevokeLeaseArgs {
        execution_id: id,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "operator says so".to_owned(),
    }
}

fn revoked(owner: &Owner) -> RevokeLeaseResult {
    RevokeLeaseResult::Revoked { lease_id: owner.lease_id(), lease_epoch: owner.epoch() }
}

const fn not_needed(reason: RevokeNotNeeded) -> RevokeLeaseResult {
    RevokeLeaseResult::AlreadySatisfied { reason }
}

async fn a_revoked_lease_waits_for_a_reclaim(world: World) {
    let owner = own(&world).await;

    let answer = world.backend.revoke_lease(args(owner.id)).await.unwrap();

    assert_eq!(answer, revoked(&owner));
    let info = info(&world, owner.id).await;
    assert_eq!(info.state_vector.lifecycle_phase, LifecyclePhase::Active);
    assert_eq!(info.state_vector.ownership_state, OwnershipState::LeaseRevoked);
    assert_eq!(info.state_vector.attempt_state, AttemptState::AttemptInterrupted);
    assert_eq!(info.state_vector.blocking_reason, BlockingReason::WaitingForWorker);
    assert_eq!(info.public_state, PublicState::Active);
    assert_eq!(field(&world, owner.id, "lease_revoke_reason").await.as_deref(), Some("operator says so"));
}

async fn a_revocation_may_name_the_lease_and_the_worker(world: World) {
    let owner = own(&world).await;
    let named = RevokeLeaseArgs {
        expected_lease_id: Some(owner.lease_id()),
        worker_instance_id: Some(world.worker().1),
        ..args(owner.id)
    };
    assert_eq!(world.backend.revoke_lease(named).await.unwrap(), revoked(&owner));
}

async fn revoking_a_missing_execution_finds_nothing(world: World) {
    not_found(world.backend.revoke_lease(args(world.execution_id())).await, Entity::Execution);
    let id: ExecutionId = format!("{{fp:65535}}:{}", world.uuid()).parse().unwrap();
    invalid(world.backend.revoke_lease(args(id)).await, ValidationKind::InvalidInput);
}

async fn revoking_what_is_not_active_is_refused(world: World) {
    let waiting = world.create().await;
    assert_eq!(not_active(world.backend.revoke_lease(args(waiting)).await).lifecycle_phase, LifecyclePhase::Runnable);
    let owner = own(&world).await;
    complete(&world, Form::Handle, &owner, None).await.unwrap();
    let stranger = RevokeLeaseArgs { expected_lease_id: Some(LeaseId::from_uuid(world.uuid())), ..args(owner.id) };
    let detail = not_active(world.backend.revoke_lease(stranger).await);
    assert_eq!((detail.lifecycle_phase, detail.lease_epoch), (LifecyclePhase::Terminal, owner.epoch()));
}

async fn revoking_twice_is_not_needed(world: World) {
    let owner = own(&world).await;
    world.backend.revoke_lease(args(owner.id)).await.unwrap();
    let stranger = RevokeLeaseArgs { expected_lease_id: Some(LeaseId::from_uuid(world.uuid())), ..args(owner.id) };
    for again in [args(owner.id), stranger] {
        let answer = world.backend.revoke_lease(again).await.unwrap();
        assert_eq!(answer, not_needed(RevokeNotNeeded::AlreadyRevoked));
    }
}

async fn revoking_an_expired_lease_is_not_needed(world: World) {
    let owner = own(&world).await;
    run_out(&world, &owner);
    for _ in 0..2 {
        let answer = world.backend.revoke_lease(args(owner.id)).await.unwrap();
        assert_eq!(answer, not_needed(RevokeNotNeeded::AlreadyExpired));
        let stored = info(&world, owner.id).await.state_vector;
        assert_eq!(stored.ownership_state, OwnershipState::LeaseExpiredReclaimable);
    }
}

async fn revoking_another_lease_is_refused(world: World) {
    let owner = own(&world).await;
    let other = RevokeLeaseArgs { expected_lease_id: Some(LeaseId::from_uuid(world.uuid())), ..args(owner.id) };
    state(world.backend.revoke_lease(other).await, StateKind::StaleLease);
    complete(&world, Form::Handle, &owner, None).await.unwrap();
}

fn elsewhere() -> Option<WorkerInstanceId> {
    Some(WorkerInstanceId::new("elsewhere").unwrap())
}

async fn revoking_from_another_worker_is_not_needed(world: World) {
    let owner = own(&world).await;
    let other = RevokeLeaseArgs { worker_instance_id: elsewhere(), ..args(owner.id) };
    let answer = world.backend.revoke_lease(other).await.unwrap();
    assert_eq!(answer, not_needed(RevokeNotNeeded::DifferentWorkerInstanceId));
    complete(&world, Form::Handle, &owner, None).await.unwrap();
}

async fn another_lease_is_reported_before_another_worker(world: World) {
    let owner = own(&world).await;
    let other = RevokeLeaseArgs {
        expected_lease_id: Some(LeaseId::from_uuid(world.uuid())),
        worker_instance_id: elsewhere(),
        ..args(owner.id)
    };
    state(world.backend.revoke_lease(other).await, StateKind::StaleLease);
}

async fn a_revocation_tells_its_watchers_once(world: World) {
    let owner = own(&world).await;
    let watched = watch(&world).await;
    world.backend.revoke_lease(args(owner.id)).await.unwrap();
    world.backend.revoke_lease(args(owner.id)).await.unwrap();
    let change = LeaseChange::Revoked {
        lease_id: owner.lease_id(),
        lease_epoch: owner.epoch(),
        prev_owner: world.worker().1,
        revoked_by: RevokedBy::Operator,
        reason: "operator says so".to_owned(),
    };
    let seen = watched.seen(&world).await;
    assert_eq!((seen.leases, seen.ends), (vec![(owner.id, change)], vec![]));
}

async fn a_revocation_closes_the_stream(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    assert_eq!(closed(&world, owner.id, 0).await, Some(StreamCloseReason::LeaseRevoked));
}

async fn a_revoked_execution_is_not_handed_out_by_claims(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    world.pass(LEASE_MS * 10).await;
    assert!(world.claim().await.is_none());
    let stored = info(&world, owner.id).await.state_vector;
    assert_eq!(stored.ownership_state, OwnershipState::LeaseRevoked);
}

async fn a_revoked_attempt_neither_expires_nor_times_out(world: World) {
    let owner = own_with(&world, &timed(5_000, retrying(3))).await;
    revoke(&world, &owner).await;
    world.pass(LEASE_MS * 2).await;
    let stored = info(&world, owner.id).await.state_vector;
    assert_eq!(stored.ownership_state, OwnershipState::LeaseRevoked);
    assert_eq!(world.run_due().await, 0);
}

async fn nothing_of_the_old_owner_succeeds_after_a_revocation(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    for (call, form) in CALLS {
        act(&world, call, form, &owner).await.unwrap_err();
    }
    act(&world, Act::Progress, Form::Handle, &owner).await.unwrap_err();
    assert_eq!(world.state(owner.id).await, PublicState::Active);
}

async fn a_long_or_unprintable_reason_for_a_revocation_is_refused(world: World) {
    let owner = own(&world).await;
    for bad in ["x".repeat(257), "line\nbreak".to_owned()] {
        let answer = world.backend.revoke_lease(RevokeLeaseArgs { reason: bad, ..args(owner.id) }).await;
        invalid(answer, ValidationKind::InvalidInput);
    }
    complete(&world, Form::Handle, &owner, None).await.unwrap();
}

async fn revoking_an_unreadable_execution_is_reported_as_corruption(world: World) {
    let owner = own(&world).await;
    world.damage(Damage::Execution(owner.id)).await;
    invalid(world.backend.revoke_lease(args(owner.id)).await, ValidationKind::Corruption);
}
