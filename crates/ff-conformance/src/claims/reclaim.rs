//! Claims take over what others lost.

use ff_core::backend::claims::ClaimForWorkerOutcome;
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::error::StateKind;
use ff_core::handle::HandleKind;
use ff_core::policy::{ExecutionPolicy, ReclaimBackoff};
use ff_core::state::PublicState;

use super::reserve::worker_args;
use crate::cases;
use crate::expect::state;
use crate::world::{LEASE_MS, World};

cases!["claims":
    a_lost_lease_is_reclaimed_by_a_claim,
    the_old_owner_cannot_act_after_a_reclaim,
    a_reclaim_waits_longer_each_time,
    the_policy_sets_the_pause_between_reclaims,
    a_claim_ends_what_was_reclaimed_too_often,
    a_claim_looks_past_what_it_ends,
    a_revoked_lease_needs_an_explicit_grant,
    lost_work_keeps_its_rank,
    the_scheduler_reserves_lost_work_for_a_reclaim,
];

async fn a_lost_lease_is_reclaimed_by_a_claim(world: World) {
    let (id, _lost) = world.claim_one().await;
    world.pass(LEASE_MS).await;

    let handle = world.claim_as("worker-b", LEASE_MS).await.unwrap().expect("the lost execution is claimable");

    assert_eq!(handle.kind, HandleKind::Reclaimed);
    let snapshot = world.backend.describe_execution(id).await.unwrap().unwrap();
    assert_eq!(snapshot.total_attempt_count, 2);
    assert_eq!(snapshot.current_attempt.unwrap().attempt_index.0, 1);
    assert_eq!(snapshot.current_lease.unwrap().lease_epoch.0, 2);
    world.backend.complete(&handle, None).await.unwrap();
    assert_eq!(world.state(id).await, PublicState::Completed);
}

async fn the_old_owner_cannot_act_after_a_reclaim(world: World) {
    let (_id, lost) = world.claim_one().await;
    world.pass(LEASE_MS).await;
    world.claim_as("worker-b", LEASE_MS).await.unwrap().unwrap();
    state(world.backend.renew(&lost).await, StateKind::StaleLease);
    state(world.backend.complete(&lost, None).await, StateKind::StaleLease);
}

async fn a_reclaim_waits_longer_each_time(world: World) {
    world.claim_one().await;
    for pause in [0, 1000, 2000, 4000] {
        world.pass(LEASE_MS).await;
        if pause > 0 {
            assert!(world.claim().await.is_none());
            world.pass(pause - 1).await;
            assert!(world.claim().await.is_none(), "not before {pause} ms");
            world.pass(1).await;
        }
        assert!(world.claim().await.is_some(), "after {pause} ms");
    }
}

async fn the_policy_sets_the_pause_between_reclaims(world: World) {
    let backoff = ReclaimBackoff { initial_delay_ms: 10, max_delay_ms: 15 };
    let policy = ExecutionPolicy { reclaim_backoff: Some(backoff), ..ExecutionPolicy::default() };
    world.claim_one_with(&policy).await;
    for pause in [0, 10, 15, 15] {
        world.pass(LEASE_MS).await;
        if pause > 0 {
            world.pass(pause - 1).await;
            assert!(world.claim().await.is_none());
            world.pass(1).await;
        }
        assert!(world.claim().await.is_some());
    }
}

async fn a_claim_ends_what_was_reclaimed_too_often(world: World) {
    let policy = ExecutionPolicy { max_reclaim_count: Some(1), ..ExecutionPolicy::default() };
    let (id, _) = world.claim_one_with(&policy).await;
    world.pass(LEASE_MS).await;
    assert!(world.claim().await.is_some());
    world.pass(LEASE_MS).await;
    world.pass(60_000).await;

    assert!(world.claim().await.is_none());

    assert_eq!(world.state(id).await, PublicState::Failed);
    assert_eq!(world.backend.read_total_attempt_count(id).await.unwrap(), 2);
}

async fn a_claim_looks_past_what_it_ends(world: World) {
    let policy = ExecutionPolicy { max_reclaim_count: Some(0), ..ExecutionPolicy::default() };
    let (lost, _) = world.claim_one_with(&policy).await;
    let behind = world.create().await;
    world.pass(LEASE_MS).await;
    assert!(world.claim().await.is_some());
    assert_eq!((world.state(lost).await, world.state(behind).await), (PublicState::Failed, PublicState::Active));
}

async fn a_revoked_lease_needs_an_explicit_grant(world: World) {
    let (id, _) = world.claim_one().await;
    let args = RevokeLeaseArgs {
        execution_id: id,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "misbehaves".to_owned(),
    };
    world.backend.revoke_lease(args).await.unwrap();
    world.pass(LEASE_MS + 60_000).await;
    assert!(world.claim().await.is_none());
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn lost_work_keeps_its_rank(world: World) {
    let (lost, _) = world.claim_one().await;
    world.advance(1);
    let young = world.create().await;
    world.pass(LEASE_MS).await;
    let handle = world.claim().await.unwrap();
    assert_eq!(handle.kind, HandleKind::Reclaimed);
    assert_eq!((world.state(lost).await, world.state(young).await), (PublicState::Active, PublicState::Waiting));
}

async fn the_scheduler_reserves_lost_work_for_a_reclaim(world: World) {
    let (id, _) = world.claim_one().await;
    world.pass(LEASE_MS).await;
    let answer = world.backend.claim_for_worker(worker_args(&world, "worker-b")).await.unwrap();
    let ClaimForWorkerOutcome::Granted(grant) = answer else { panic!("expected a grant, got {answer:?}") };
    assert_eq!(grant.kind.as_str(), "reclaim");
    assert_eq!(grant.execution_id, id);
    assert!(world.claim().await.is_none(), "reserved");
}
