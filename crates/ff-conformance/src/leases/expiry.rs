//! A lease runs out.

use ff_core::backend::subscriptions::LeaseChange;
use ff_core::error::ValidationKind;
use ff_core::handle::HandleKind;
use ff_core::ids::ExecutionId;
use ff_core::policy::{ExecutionPolicy, ReclaimBackoff};
use ff_core::state::{
    AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState, StateVector,
    StreamCloseReason, TerminalOutcome,
};

use crate::attempts::owner::{Form, closed, complete, info, own, own_with, retrying, revoke, run_out, timed, watch};
use crate::cases;
use crate::expect::invalid;
use crate::harness::Damage;
use crate::world::{LEASE_MS, World};

cases!["leases":
    an_overdue_lease_is_marked,
    a_lease_that_is_not_overdue_is_left_alone,
    marking_what_is_not_there_or_not_owned_does_nothing,
    marking_twice_changes_nothing,
    an_overdue_lease_is_marked_by_the_timers,
    an_expired_lease_tells_its_watchers_once,
    an_expired_lease_closes_the_stream,
    an_expired_lease_keeps_its_owner_on_record,
    an_expired_attempt_does_not_time_out,
    an_expired_execution_is_claimed_as_a_reclaim,
    consecutive_reclaims_wait_longer_and_longer,
    an_orderly_return_ends_the_row_of_reclaims,
    a_policy_may_change_the_pause_before_a_reclaim,
    an_unreadable_policy_does_not_keep_a_lease,
    a_partition_that_does_not_exist_is_refused,
];

async fn ownership(world: &World, id: ExecutionId) -> OwnershipState {
    info(world, id).await.state_vector.ownership_state
}

async fn an_overdue_lease_is_marked(world: World) {
    let owner = own(&world).await;
    run_out(&world, &owner);

    world.backend.mark_lease_expired_if_due(owner.id).await.unwrap();

    let expected = StateVector {
        lifecycle_phase: LifecyclePhase::Active,
        ownership_state: OwnershipState::LeaseExpiredReclaimable,
        eligibility_state: EligibilityState::NotApplicable,
        blocking_reason: BlockingReason::WaitingForWorker,
        terminal_outcome: TerminalOutcome::None,
        attempt_state: AttemptState::AttemptInterrupted,
    };
    let info = info(&world, owner.id).await;
    assert_eq!((info.state_vector, info.public_state), (expected, PublicState::Active));
}

async fn a_lease_that_is_not_overdue_is_left_alone(world: World) {
    let owner = own(&world).await;
    world.advance(LEASE_MS - 1);
    world.backend.mark_lease_expired_if_due(owner.id).await.unwrap();
    assert_eq!(ownership(&world, owner.id).await, OwnershipState::Leased);
    world.backend.renew(&owner.handle).await.unwrap();
    world.advance(1);
    world.backend.mark_lease_expired_if_due(owner.id).await.unwrap();
    assert_eq!(ownership(&world, owner.id).await, OwnershipState::Leased);
}

async fn marking_what_is_not_there_or_not_owned_does_nothing(world: World) {
    let waiting = world.create().await;
    let ended = own(&world).await;
    complete(&world, Form::Handle, &ended, None).await.unwrap();
    let revoked = own(&world).await;
    revoke(&world, &revoked).await;
    world.advance(LEASE_MS * 2);
    for id in [world.execution_id(), waiting, ended.id, revoked.id] {
        world.backend.mark_lease_expired_if_due(id).await.unwrap();
    }
    assert_eq!(world.state(waiting).await, PublicState::Waiting);
    assert_eq!(world.state(ended.id).await, PublicState::Completed);
    assert_eq!(ownership(&world, revoked.id).await, OwnershipState::LeaseRevoked);
}

async fn marking_twice_changes_nothing(world: World) {
    let owner = own(&world).await;
    run_out(&world, &owner);
    world.backend.mark_lease_expired_if_due(owner.id).await.unwrap();
    let before = world.backend.describe_execution(owner.id).await.unwrap();
    world.advance(1_000);
    world.backend.mark_lease_expired_if_due(owner.id).await.unwrap();
    assert_eq!(world.backend.describe_execution(owner.id).await.unwrap(), before);
}

async fn an_overdue_lease_is_marked_by_the_timers(world: World) {
    let owner = own(&world).await;
    world.pass(LEASE_MS - 1).await;
    assert_eq!(ownership(&world, owner.id).await, OwnershipState::Leased);
    world.pass(1).await;
    assert_eq!(ownership(&world, owner.id).await, OwnershipState::LeaseExpiredReclaimable);
    assert_eq!(world.run_due().await, 0, "nothing is due twice");
}

async fn an_expired_lease_tells_its_watchers_once(world: World) {
    let owner = own(&world).await;
    let watched = watch(&world).await;

    world.pass(LEASE_MS).await;
    world.backend.mark_lease_expired_if_due(owner.id).await.unwrap();

    let (lease_id, lease_epoch) = (owner.lease_id(), owner.epoch());
    let change = LeaseChange::Expired { lease_id, lease_epoch, prev_owner: world.worker().1 };
    let seen = watched.seen(&world).await;
    assert_eq!((seen.leases, seen.ends), (vec![(owner.id, change)], vec![]));
}

async fn an_expired_lease_closes_the_stream(world: World) {
    let owner = own(&world).await;
    world.pass(LEASE_MS).await;
    assert_eq!(closed(&world, owner.id, 0).await, Some(StreamCloseReason::LeaseExpired));
}

async fn an_expired_lease_keeps_its_owner_on_record(world: World) {
    let owner = own(&world).await;
    world.pass(LEASE_MS).await;
    let seen = world.backend.describe_execution(owner.id).await.unwrap().unwrap();
    let lease = seen.current_lease.expect("who lost it is still known");
    assert_eq!((lease.lease_id, lease.lease_epoch), (owner.lease_id(), owner.epoch()));
    assert_eq!(lease.worker_instance_id, world.worker().1);
    assert_eq!(seen.current_attempt.unwrap().attempt_id, owner.attempt_id());
}

async fn an_expired_attempt_does_not_time_out(world: World) {
    let owner = own_with(&world, &timed(LEASE_MS + 10_000, retrying(0))).await;
    world.pass(LEASE_MS).await;
    world.pass(60_000).await;
    assert_eq!(ownership(&world, owner.id).await, OwnershipState::LeaseExpiredReclaimable);
}

async fn an_expired_execution_is_claimed_as_a_reclaim(world: World) {
    let owner = own(&world).await;
    world.pass(LEASE_MS).await;

    let handle = world.claim().await.expect("an expired execution is handed out again");

    assert_eq!(handle.kind, HandleKind::Reclaimed);
    assert_eq!(world.backend.read_total_attempt_count(owner.id).await.unwrap(), 2);
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(world.state(owner.id).await, PublicState::Completed);
}

/// How long after the expiry of its lease an execution is handed out again.
async fn pause(world: &World) -> u64 {
    world.pass(LEASE_MS).await;
    for waited in 0..200 {
        if world.claim().await.is_some() {
            return waited * 500;
        }
        world.pass(500).await;
    }
    panic!("the execution is never handed out again");
}

async fn consecutive_reclaims_wait_longer_and_longer(world: World) {
    own(&world).await;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        pauses.push(pause(&world).await);
    }
    assert_eq!(pauses, [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000]);
}

async fn an_orderly_return_ends_the_row_of_reclaims(world: World) {
    own(&world).await;
    assert_eq!((pause(&world).await, pause(&world).await, pause(&world).await), (0, 1_000, 2_000));
    world.pass(LEASE_MS).await;
    world.pass(4_000).await;
    let handle = world.claim().await.unwrap();
    world.backend.delay(&handle, world.now()).await.unwrap();
    world.pass(0).await;
    world.claim().await.expect("the delay is over");

    assert_eq!(pause(&world).await, 0);
}

async fn a_policy_may_change_the_pause_before_a_reclaim(world: World) {
    let backoff = ReclaimBackoff { initial_delay_ms: 5_000, max_delay_ms: 7_000 };
    let policy = ExecutionPolicy { reclaim_backoff: Some(backoff), ..ExecutionPolicy::default() };
    own_with(&world, &policy).await;
    let pauses = [pause(&world).await, pause(&world).await, pause(&world).await];
    assert_eq!(pauses, [0, 5_000, 7_000]);
}

async fn an_unreadable_policy_does_not_keep_a_lease(world: World) {
    let owner = own(&world).await;
    world.damage(Damage::Definition(owner.id)).await;
    world.pass(LEASE_MS).await;
    assert_eq!(ownership(&world, owner.id).await, OwnershipState::LeaseExpiredReclaimable);
}

async fn a_partition_that_does_not_exist_is_refused(world: World) {
    let id: ExecutionId = format!("{{fp:65535}}:{}", world.uuid()).parse().unwrap();
    invalid(world.backend.mark_lease_expired_if_due(id).await, ValidationKind::InvalidInput);
}
