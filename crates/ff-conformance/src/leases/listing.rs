//! Leases that were lost or are overdue, as tooling sees them.

use ff_core::TimestampMs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::leases::{ExpiredLeasesCursor, ListExpiredLeasesArgs, ListExpiredLeasesResult};
use ff_core::ids::{ExecutionId, Namespace};
use ff_core::partition::PartitionCounts;
use ff_core::state::OwnershipState;

use crate::attempts::owner::{Form, Owner, complete, own, reclaim_as, revoke, run_out, take_as};
use crate::cases;
use crate::world::{LEASE_MS, World};

cases!["leases":
    lost_and_overdue_leases_are_listed,
    a_held_lease_is_not_listed,
    a_revoked_lease_is_listed_before_it_would_have_run_out,
    a_lease_that_was_taken_over_or_given_back_is_not_listed,
    lost_leases_are_ordered_by_expiry_then_execution,
    pages_of_lost_leases_have_no_gaps_and_no_repetitions,
    lost_leases_of_one_tenant_are_listed_alone,
    a_page_of_no_entries_keeps_its_place,
];

fn all(as_of: TimestampMs) -> ListExpiredLeasesArgs {
    ListExpiredLeasesArgs { as_of, after: None, limit: None, namespace: None }
}

async fn list(world: &World, args: ListExpiredLeasesArgs) -> ListExpiredLeasesResult {
    world.backend.list_expired_leases(args).await.unwrap()
}

async fn listed(world: &World) -> Vec<(ExecutionId, OwnershipState)> {
    let page = list(world, all(world.now())).await;
    assert_eq!(page.cursor, None);
    page.entries.iter().map(|entry| (entry.execution_id, entry.ownership_state)).collect()
}

async fn lost_and_overdue_leases_are_listed(world: World) {
    let owner = own(&world).await;
    run_out(&world, &owner);

    let page = list(&world, all(world.now())).await;

    let entry = &page.entries[0];
    assert_eq!((entry.execution_id, entry.lease_id), (owner.id, owner.lease_id()));
    assert_eq!((entry.lease_epoch, entry.attempt_index), (owner.epoch(), owner.index));
    assert_eq!((&entry.worker_instance_id, entry.expires_at_ms), (&world.worker().1, owner.expires_at));
    assert_eq!(entry.ownership_state, OwnershipState::Leased, "nobody has marked it yet");
    world.run_due().await;
    assert_eq!(listed(&world).await, [(owner.id, OwnershipState::LeaseExpiredReclaimable)]);
}

async fn a_held_lease_is_not_listed(world: World) {
    let owner = own(&world).await;
    assert_eq!(listed(&world).await, []);
    world.advance(LEASE_MS - 1);
    assert_eq!(listed(&world).await, []);
    let page = list(&world, all(owner.expires_at)).await;
    assert_eq!(page.entries.len(), 1, "as of then it would be");
}

async fn a_revoked_lease_is_listed_before_it_would_have_run_out(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    assert_eq!(listed(&world).await, [(owner.id, OwnershipState::LeaseRevoked)]);
}

async fn a_lease_that_was_taken_over_or_given_back_is_not_listed(world: World) {
    let first = own(&world).await;
    let second = own(&world).await;
    run_out(&world, &second);
    let again = reclaim_as(&world, &first, "worker-b").await;
    let done = reclaim_as(&world, &second, "worker-b").await;
    complete(&world, Form::Handle, &done, None).await.unwrap();
    assert_eq!(listed(&world).await, []);
    complete(&world, Form::Handle, &again, None).await.unwrap();
}

/// Owners in several partitions, some of whose leases run out together; in the order of the listing.
async fn many(world: &World) -> Vec<Owner> {
    let mut owners = Vec::new();
    for round in 0..4 {
        for _ in 0..5 {
            let uuid = world.uuid();
            let lane = ff_core::ids::LaneId::new(format!("lane-{}", owners.len())).unwrap();
            let id = ExecutionId::solo(&lane, &PartitionCounts::default(), uuid);
            world.submit(CreateExecutionArgs { execution_id: Some(id), ..world.submission() }).await;
            owners.push(take_as(world, id, 0, "worker-a").await);
        }
        if round % 2 == 0 {
            world.advance(10);
        }
    }
    for owner in owners.iter().step_by(3) {
        revoke(world, owner).await;
    }
    world.advance(LEASE_MS);
    world.backend.mark_lease_expired_if_due(owners[1].id).await.unwrap();
    owners.sort_by_key(|owner| (owner.expires_at, owner.id));
    owners
}

async fn lost_leases_are_ordered_by_expiry_then_execution(world: World) {
    let owners = many(&world).await;
    let expected: Vec<_> = owners.iter().map(|owner| owner.id).collect();
    let found: Vec<_> = listed(&world).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(found, expected);
}

async fn pages_of_lost_leases_have_no_gaps_and_no_repetitions(world: World) {
    let owners = many(&world).await;
    for limit in [1, 3, 7, 20, 30] {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = list(&world, ListExpiredLeasesArgs { limit: Some(limit), after, ..all(world.now()) }).await;
            assert!(page.entries.len() <= limit as usize);
            found.extend(page.entries.iter().map(|entry| entry.execution_id));
            after = page.cursor;
            if after.is_none() {
                break;
            }
        }
        let expected: Vec<_> = owners.iter().map(|owner| owner.id).collect();
        assert_eq!(found, expected, "in pages of {limit}");
    }
    let middle = &owners[9];
    let after = Some(ExpiredLeasesCursor { expires_at_ms: middle.expires_at, execution_id: middle.id });
    let page = list(&world, ListExpiredLeasesArgs { after, limit: Some(u32::MAX), ..all(world.now()) }).await;
    assert_eq!(page.entries[0].execution_id, owners[10].id, "a cursor is exclusive");
    assert_eq!(page.entries.len(), 10);
}

async fn lost_leases_of_one_tenant_are_listed_alone(world: World) {
    let other = Namespace::new("other").unwrap();
    let mut theirs = Vec::new();
    for round in 0..6 {
        let mine = own(&world).await;
        revoke(&world, &mine).await;
        if round % 2 == 0 {
            let args = CreateExecutionArgs { namespace: other.clone(), ..world.submission() };
            let id = world.submit(args).await;
            let owner = take_as(&world, id, 0, "worker-a").await;
            revoke(&world, &owner).await;
            theirs.push(id);
        }
        world.advance(1);
    }
    let namespace = Some(other);
    let args = ListExpiredLeasesArgs { namespace: namespace.clone(), ..all(world.now()) };
    let page = list(&world, args.clone()).await;
    assert_eq!(page.entries.iter().map(|entry| entry.execution_id).collect::<Vec<_>>(), theirs);
    let first = list(&world, ListExpiredLeasesArgs { limit: Some(2), ..args.clone() }).await;
    assert_eq!(first.entries.len(), 2);
    let rest = list(&world, ListExpiredLeasesArgs { after: first.cursor, ..args }).await;
    assert_eq!(rest.entries.iter().map(|entry| entry.execution_id).collect::<Vec<_>>(), theirs[2..]);
    let nobody = Some(Namespace::new("nobody").unwrap());
    let page = list(&world, ListExpiredLeasesArgs { namespace: nobody, ..all(world.now()) }).await;
    assert_eq!(page, ListExpiredLeasesResult { entries: vec![], cursor: None });
}

async fn a_page_of_no_entries_keeps_its_place(world: World) {
    let owner = own(&world).await;
    revoke(&world, &owner).await;
    let after = Some(ExpiredLeasesCursor { expires_at_ms: world.now(), execution_id: owner.id });
    let page = list(&world, ListExpiredLeasesArgs { limit: Some(0), after, ..all(world.now()) }).await;
    assert_eq!(page, ListExpiredLeasesResult { entries: vec![], cursor: after });
}
