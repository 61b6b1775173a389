//! The owner keeps its lease. Who may renew is proven with the other calls of an owner.

use ff_core::backend::leases::{RenewLeaseArgs, RenewLeaseResult};
use ff_core::backend::subscriptions::LeaseChange;
use ff_core::error::{StateKind, ValidationKind};
use ff_core::ids::FenceTriple;
use ff_core::state::{OwnershipState, PublicState};

use crate::attempts::owner::{Form, complete, info, own, renewal, run_out, watch};
use crate::cases;
use crate::expect::{invalid, state};
use crate::stage::chain;
use crate::world::{LEASE_MS, World};

cases!["leases":
    a_renewed_lease_expires_later,
    a_lease_is_renewed_by_its_own_length,
    a_fenced_renewal_gives_the_lease_another_length,
    a_renewal_keeps_the_epoch_and_the_attempt,
    a_renewal_may_shorten_a_lease,
    a_renewal_never_revives_an_expired_lease,
    a_renewal_of_no_length_is_refused,
    a_renewal_beyond_the_end_of_time_is_refused,
    the_fence_of_a_renewal_is_looked_at_before_its_length,
    a_renewal_tells_its_watchers,
    a_renewal_in_a_flow_leaves_nothing_to_do,
];

async fn a_renewal_in_a_flow_leaves_nothing_to_do(world: World) {
    chain(&world, 1).await;
    let handle = world.claim().await.unwrap();
    world.pass(2_000).await;
    world.backend.renew(&handle).await.unwrap();
    world.advance(2_000);
    assert_eq!(world.run_due().await, 0, "the summary of the flow shows no lease");
}

async fn a_renewed_lease_expires_later(world: World) {
    let owner = own(&world).await;
    for _ in 0..5 {
        world.pass(LEASE_MS / 2).await;
        world.backend.renew(&owner.handle).await.unwrap();
        world.backend.renew_lease(renewal(&owner)).await.unwrap();
    }
    assert_eq!(info(&world, owner.id).await.state_vector.ownership_state, OwnershipState::Leased);
    world.pass(LEASE_MS).await;
    let stored = info(&world, owner.id).await.state_vector;
    assert_eq!(stored.ownership_state, OwnershipState::LeaseExpiredReclaimable);
}

async fn a_lease_is_renewed_by_its_own_length(world: World) {
    let owner = own(&world).await;
    world.advance(1_000);
    let renewed = world.backend.renew(&owner.handle).await.unwrap();
    assert_eq!(renewed.expires_at_ms, world.now().plus(LEASE_MS));
    let lease = world.backend.describe_execution(owner.id).await.unwrap().unwrap().current_lease.unwrap();
    assert_eq!((lease.expires_at, lease.last_heartbeat_at), (renewed.expires_at_ms, Some(world.now())));
}

async fn a_fenced_renewal_gives_the_lease_another_length(world: World) {
    let owner = own(&world).await;
    let args = RenewLeaseArgs { lease_ttl_ms: 90_000, ..renewal(&owner) };
    let renewed = world.backend.renew_lease(args).await.unwrap();
    assert_eq!(renewed, RenewLeaseResult::Renewed { expires_at: world.now().plus(90_000) });
    world.pass(89_999).await;
    complete(&world, Form::Handle, &owner, None).await.unwrap();
}

async fn a_renewal_keeps_the_epoch_and_the_attempt(world: World) {
    let owner = own(&world).await;
    let renewed = world.backend.renew(&owner.handle).await.unwrap();
    assert_eq!(renewed.lease_epoch, owner.epoch());
    let lease = world.backend.describe_execution(owner.id).await.unwrap().unwrap().current_lease.unwrap();
    assert_eq!((lease.lease_id, lease.lease_epoch), (owner.lease_id(), owner.epoch()));
    assert_eq!(lease.attempt_index, owner.index);
}

async fn a_renewal_may_shorten_a_lease(world: World) {
    let owner = own(&world).await;
    let args = RenewLeaseArgs { lease_ttl_ms: 10, ..renewal(&owner) };
    world.backend.renew_lease(args).await.unwrap();
    world.advance(10);
    state(world.backend.renew(&owner.handle).await, StateKind::LeaseExpired);
}

async fn a_renewal_never_revives_an_expired_lease(world: World) {
    let owner = own(&world).await;
    run_out(&world, &owner);

    state(world.backend.renew(&owner.handle).await, StateKind::LeaseExpired);
    state(world.backend.renew_lease(renewal(&owner)).await, StateKind::LeaseExpired);

    let stored = info(&world, owner.id).await;
    assert_eq!(stored.state_vector.ownership_state, OwnershipState::LeaseExpiredReclaimable);
    assert_eq!(stored.public_state, PublicState::Active);
}

async fn a_renewal_of_no_length_is_refused(world: World) {
    let owner = own(&world).await;
    let args = RenewLeaseArgs { lease_ttl_ms: 0, ..renewal(&owner) };
    invalid(world.backend.renew_lease(args).await, ValidationKind::InvalidInput);
}

async fn a_renewal_beyond_the_end_of_time_is_refused(world: World) {
    let owner = own(&world).await;
    for lease_ttl_ms in [u64::MAX, i64::MAX.unsigned_abs()] {
        let args = RenewLeaseArgs { lease_ttl_ms, ..renewal(&owner) };
        invalid(world.backend.renew_lease(args).await, ValidationKind::InvalidInput);
    }
}

async fn the_fence_of_a_renewal_is_looked_at_before_its_length(world: World) {
    let owner = own(&world).await;
    let args = RenewLeaseArgs { lease_ttl_ms: 0, fence: FenceTriple::NONE, ..renewal(&owner) };
    let detail = invalid(world.backend.renew_lease(args).await, ValidationKind::InvalidInput);
    assert_eq!(detail, "fence_required");
}

async fn a_renewal_tells_its_watchers(world: World) {
    let owner = own(&world).await;
    let watched = watch(&world).await;
    world.advance(5);

    world.backend.renew(&owner.handle).await.unwrap();
    world.backend.renew_lease(renewal(&owner)).await.unwrap();

    let change = LeaseChange::Renewed {
        lease_id: owner.lease_id(),
        lease_epoch: owner.epoch(),
        worker_instance_id: world.worker().1,
        expires_at: world.now().plus(LEASE_MS),
    };
    let seen = watched.seen(&world).await;
    assert_eq!(seen.leases, [(owner.id, change.clone()), (owner.id, change)]);
}
