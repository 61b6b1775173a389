//! Only the owner of a live lease suspends.

use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::handle::{BackendTag, Handle, HandleKind, HandleOpaque};
use ff_core::ids::{ExecutionId, FenceTriple, LeaseEpoch};
use ff_core::rules::retention::DEFAULT_RETENTION_MS;
use ff_core::state::PublicState;

use super::fixtures::*;
use crate::expect::{contention, invalid, not_found, state};
use crate::world::LEASE_MS;
use crate::{Damage, World, cases};

cases!["suspension":
    a_suspend_with_a_bad_handle_is_refused,
    a_suspend_of_a_missing_execution_is_not_found,
    a_triple_is_given_whole,
    a_suspend_with_an_expired_lease_is_refused_and_marks_it,
    a_suspend_with_a_revoked_lease_is_refused,
    a_suspend_of_an_earlier_owner_is_stale,
    a_triple_that_differs_in_any_part_is_stale,
    a_suspend_of_a_finished_execution_is_refused,
    a_suspend_of_a_damaged_execution_is_corruption,
];

async fn a_suspend_with_a_bad_handle_is_refused(world: World) {
    let (id, handle) = held(&world).await;
    let other = BackendTag::ALL.iter().copied().find(|tag| *tag != handle.backend).unwrap();
    let foreign = Handle { backend: other, ..handle.clone() };
    let relabelled = Handle { kind: HandleKind::Resumed, ..handle.clone() };
    let cut = Handle { opaque: HandleOpaque::new(handle.opaque.as_bytes()[..10].to_vec()), ..handle };
    for (handle, kind) in [
        (foreign, ValidationKind::HandleFromOtherBackend),
        (relabelled, ValidationKind::Corruption),
        (cut, ValidationKind::InvalidInput),
    ] {
        invalid(world.backend.suspend(&handle, ask(&world)).await, kind);
        invalid(world.backend.observe_signals(&handle).await, kind);
        invalid(world.backend.create_waitpoint(&handle, "b", std::time::Duration::from_secs(1)).await, kind);
    }
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn a_suspend_of_a_missing_execution_is_not_found(world: World) {
    seed(&world).await;
    let missing = world.execution_id();
    not_found(world.backend.suspend_by_triple(missing, FenceTriple::NONE, ask(&world)).await, Entity::Execution);
    let nowhere = ExecutionId::new(u16::MAX, world.uuid());
    let refused = world.backend.suspend_by_triple(nowhere, FenceTriple::NONE, ask(&world)).await;
    invalid(refused, ValidationKind::InvalidInput);

    let (_, handle) = world.claim_one().await;
    world.backend.cancel(&handle, "enough").await.unwrap();
    world.pass(DEFAULT_RETENTION_MS + 1).await;
    not_found(world.backend.suspend(&handle, ask(&world)).await, Entity::Execution);
    let waitpoint = world.backend.create_waitpoint(&handle, "b", std::time::Duration::from_secs(1)).await;
    not_found(waitpoint, Entity::Execution);
    assert!(observed(&world, &handle).await.is_empty());
}

async fn a_triple_is_given_whole(world: World) {
    let (id, _) = held(&world).await;
    let whole = fence_of(&world, id).await;
    let suspend = async |fence| {
        invalid(world.backend.suspend_by_triple(id, fence, ask(&world)).await, ValidationKind::InvalidInput)
    };
    assert_eq!(suspend(FenceTriple::NONE).await, "fence_required");
    assert_eq!(suspend(FenceTriple { lease_id: None, ..whole }).await, "partial_fence_triple");
    assert_eq!(suspend(FenceTriple { lease_epoch: None, ..whole }).await, "partial_fence_triple");
    assert_eq!(suspend(FenceTriple { attempt_id: None, ..whole }).await, "partial_fence_triple");
}

async fn a_suspend_with_an_expired_lease_is_refused_and_marks_it(world: World) {
    let (id, handle) = held(&world).await;
    let fence = fence_of(&world, id).await;
    world.advance(LEASE_MS);
    state(world.backend.suspend(&handle, ask(&world)).await, StateKind::LeaseExpired);
    let ownership = info(&world, id).await.state_vector.ownership_state;
    assert_eq!(ownership, ff_core::state::OwnershipState::LeaseExpiredReclaimable);
    state(world.backend.suspend_by_triple(id, fence, ask(&world)).await, StateKind::LeaseExpired);
}

async fn a_suspend_with_a_revoked_lease_is_refused(world: World) {
    let (id, handle) = held(&world).await;
    let fence = fence_of(&world, id).await;
    let revoke =
        RevokeLeaseArgs { execution_id: id, expected_lease_id: None, worker_instance_id: None, reason: "x".into() };
    world.backend.revoke_lease(revoke).await.unwrap();
    world.advance(LEASE_MS);
    state(world.backend.suspend(&handle, ask(&world)).await, StateKind::LeaseRevoked);
    state(world.backend.suspend_by_triple(id, fence, ask(&world)).await, StateKind::LeaseRevoked);
    let waitpoint = world.backend.create_waitpoint(&handle, "b", std::time::Duration::from_secs(1)).await;
    state(waitpoint, StateKind::LeaseRevoked);
}

async fn a_suspend_of_an_earlier_owner_is_stale(world: World) {
    let (id, handle) = held(&world).await;
    let fence = fence_of(&world, id).await;
    world.advance(LEASE_MS);
    let waitpoint = world.backend.create_waitpoint(&handle, "b", std::time::Duration::from_secs(1)).await;
    state(waitpoint, StateKind::LeaseExpired);
    world.run_due().await;
    world.claim_as("worker-b", LEASE_MS).await.unwrap().expect("reclaimed");
    state(world.backend.suspend(&handle, ask(&world)).await, StateKind::StaleLease);
    state(world.backend.suspend_by_triple(id, fence, ask(&world)).await, StateKind::StaleLease);
    let waitpoint = world.backend.create_waitpoint(&handle, "b", std::time::Duration::from_secs(1)).await;
    state(waitpoint, StateKind::StaleLease);
}

async fn a_triple_that_differs_in_any_part_is_stale(world: World) {
    let (id, _) = held(&world).await;
    let whole = fence_of(&world, id).await;
    let uuid = world.uuid();
    let strangers = [
        FenceTriple { lease_id: Some(ff_core::ids::LeaseId::from_uuid(uuid)), ..whole },
        FenceTriple { lease_epoch: Some(LeaseEpoch(7)), ..whole },
        FenceTriple { attempt_id: Some(ff_core::ids::AttemptId::from_uuid(uuid)), ..whole },
    ];
    for fence in strangers {
        state(world.backend.suspend_by_triple(id, fence, ask(&world)).await, StateKind::StaleLease);
    }
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn a_suspend_of_a_finished_execution_is_refused(world: World) {
    let (id, handle) = held(&world).await;
    let fence = fence_of(&world, id).await;
    world.backend.complete(&handle, None).await.unwrap();
    contention(world.backend.suspend(&handle, ask(&world)).await, "execution_not_active");
    contention(world.backend.suspend_by_triple(id, fence, ask(&world)).await, "execution_not_active");
    assert_eq!(world.state(id).await, PublicState::Completed);
}

async fn a_suspend_of_a_damaged_execution_is_corruption(world: World) {
    let (id, handle) = held(&world).await;
    let fence = fence_of(&world, id).await;
    world.damage(Damage::Execution(id)).await;
    invalid(world.backend.suspend(&handle, ask(&world)).await, ValidationKind::Corruption);
    invalid(world.backend.suspend_by_triple(id, fence, ask(&world)).await, ValidationKind::Corruption);
}
