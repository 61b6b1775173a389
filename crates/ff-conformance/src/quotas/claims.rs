//! Quotas at claim time.

use ff_core::backend::claims::{ClaimForWorkerArgs, ClaimForWorkerOutcome, IssueGrantAndClaimArgs};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::quotas::{CheckAdmissionArgs, CheckAdmissionResult, CreateQuotaPolicyArgs};
use ff_core::ids::Namespace;
use ff_core::state::{BlockingReason, EligibilityState, PublicState};

use super::{asking, at_once, attached_to, check, create, per_minute, unbounded};
use crate::cases;
use crate::world::World;

cases!["quotas":
    a_cap_limits_how_many_are_claimed_at_once,
    a_rate_limits_how_many_are_claimed_per_window,
    a_denied_execution_shows_what_it_waits_for,
    a_denied_execution_is_due_again_when_the_window_has_moved,
    an_execution_behind_a_closed_quota_does_not_hide_others,
    a_policy_without_bounds_limits_nothing,
    every_attached_quota_must_admit,
    a_denial_by_one_quota_is_not_counted_by_another,
    a_quota_of_a_namespace_counts_all_its_claims,
    a_quota_of_a_lane_counts_the_claims_of_that_lane,
    an_admission_asked_for_beforehand_counts_for_the_claim,
    a_reservation_holds_the_slot_until_it_expires,
    an_operator_is_not_held_by_quotas,
];

async fn a_cap_limits_how_many_are_claimed_at_once(world: World) {
    let quota = at_once(&world, 2).await;
    for _ in 0..4 {
        world.create_with(&attached_to(&[quota])).await;
    }
    let first = world.claim().await.unwrap();
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());

    world.backend.complete(&first, None).await.unwrap();

    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none(), "only one slot became free");
}

async fn a_rate_limits_how_many_are_claimed_per_window(world: World) {
    let quota = per_minute(&world, 2).await;
    for _ in 0..3 {
        world.create_with(&attached_to(&[quota])).await;
    }
    for _ in 0..2 {
        let handle = world.claim().await.unwrap();
        world.backend.complete(&handle, None).await.unwrap();
    }
    assert!(world.claim().await.is_none(), "a start counts also after its end");
    world.pass(59_999).await;
    assert!(world.claim().await.is_none());
    world.pass(1).await;
    assert!(world.claim().await.is_some());
}

async fn a_denied_execution_shows_what_it_waits_for(world: World) {
    let quota = at_once(&world, 1).await;
    world.claim_one_with(&attached_to(&[quota])).await;
    let id = world.create_with(&attached_to(&[quota])).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);

    assert!(world.claim().await.is_none());

    let info = world.backend.read_execution_info(id).await.unwrap().unwrap();
    assert_eq!(info.public_state, PublicState::RateLimited);
    assert_eq!(info.state_vector.eligibility_state, EligibilityState::BlockedByQuota);
    assert_eq!(info.state_vector.blocking_reason, BlockingReason::WaitingForQuota);
    assert!(!info.blocking_detail.is_empty());
}

async fn a_denied_execution_is_due_again_when_the_window_has_moved(world: World) {
    let quota = per_minute(&world, 1).await;
    world.claim_one_with(&attached_to(&[quota])).await;
    let id = world.create_with(&attached_to(&[quota])).await;
    world.claim().await;
    assert_eq!(world.state(id).await, PublicState::RateLimited);
    world.pass(60_000).await;
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn an_execution_behind_a_closed_quota_does_not_hide_others(world: World) {
    let quota = at_once(&world, 1).await;
    world.claim_one_with(&attached_to(&[quota])).await;
    for _ in 0..3 {
        world.create_with(&attached_to(&[quota])).await;
    }
    world.advance(1);
    world.create().await;
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());
}

async fn a_policy_without_bounds_limits_nothing(world: World) {
    let quota = create(&world, unbounded(&world)).await;
    for _ in 0..3 {
        world.create_with(&attached_to(&[quota])).await;
        assert!(world.claim().await.is_some());
    }
}

async fn every_attached_quota_must_admit(world: World) {
    let (wide, narrow) = (at_once(&world, 5).await, at_once(&world, 1).await);
    world.claim_one_with(&attached_to(&[narrow])).await;
    world.create_with(&attached_to(&[wide, narrow])).await;
    assert!(world.claim().await.is_none());
}

async fn a_denial_by_one_quota_is_not_counted_by_another(world: World) {
    let (one, full) = (at_once(&world, 1).await, at_once(&world, 1).await);
    world.claim_one_with(&attached_to(&[full])).await;
    for quotas in [[one, full], [full, one]] {
        world.create_with(&attached_to(&quotas)).await;
    }
    assert!(world.claim().await.is_none());
    world.create_with(&attached_to(&[one])).await;
    assert!(world.claim().await.is_some(), "the denied executions took no slot");
}

async fn a_quota_of_a_namespace_counts_all_its_claims(world: World) {
    let args = CreateQuotaPolicyArgs { scope_type: "namespace".into(), max_concurrent: 1, ..unbounded(&world) };
    create(&world, args).await;
    world.create().await;
    world.create().await;
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());
    let elsewhere = Namespace::new("umbrella").unwrap();
    world.submit(CreateExecutionArgs { namespace: elsewhere, ..world.submission() }).await;
    assert!(world.claim().await.is_some(), "another namespace is not concerned");
}

async fn a_quota_of_a_lane_counts_the_claims_of_that_lane(world: World) {
    let (scope_type, scope_id) = ("lane".to_owned(), world.lane().to_string());
    create(&world, CreateQuotaPolicyArgs { scope_type, scope_id, max_concurrent: 1, ..unbounded(&world) }).await;
    world.create().await;
    world.create().await;
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());
}

async fn an_admission_asked_for_beforehand_counts_for_the_claim(world: World) {
    let quota = at_once(&world, 2).await;
    let id = world.create_with(&attached_to(&[quota])).await;
    world.advance(1);
    for _ in 0..2 {
        world.create_with(&attached_to(&[quota])).await;
    }
    let args = CheckAdmissionArgs { concurrency_cap: 2, ..asking(id) };
    assert_eq!(check(&world, quota, args).await, CheckAdmissionResult::Admitted);
    assert!(world.claim().await.is_some());
    assert_eq!(check(&world, quota, args).await, CheckAdmissionResult::AlreadyAdmitted);
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());
}

async fn reserve(world: &World, grant_ttl_ms: u64) -> ClaimForWorkerOutcome {
    let (worker_id, worker_instance_id) = world.worker();
    let args = ClaimForWorkerArgs {
        lane_id: world.lane(),
        worker_id,
        worker_instance_id,
        worker_capabilities: Default::default(),
        grant_ttl_ms,
        namespaces: None,
        kinds: None,
    };
    world.backend.claim_for_worker(args).await.unwrap()
}

async fn a_reservation_holds_the_slot_until_it_expires(world: World) {
    let quota = at_once(&world, 1).await;
    world.create_with(&attached_to(&[quota])).await;
    world.create_with(&attached_to(&[quota])).await;
    assert!(matches!(reserve(&world, 5_000).await, ClaimForWorkerOutcome::Granted(_)));
    assert_eq!(reserve(&world, 5_000).await, ClaimForWorkerOutcome::NoWork);
    assert!(world.claim().await.is_none());

    world.pass(5_000).await;

    assert!(matches!(reserve(&world, 5_000).await, ClaimForWorkerOutcome::Granted(_)));
    assert_eq!(reserve(&world, 5_000).await, ClaimForWorkerOutcome::NoWork);
}

async fn an_operator_is_not_held_by_quotas(world: World) {
    let quota = at_once(&world, 1).await;
    let (_, handle) = world.claim_one_with(&attached_to(&[quota])).await;
    let second = world.create_with(&attached_to(&[quota])).await;
    let args = IssueGrantAndClaimArgs { execution_id: second, lane_id: world.lane(), lease_duration_ms: 30_000 };
    let taken = world.backend.issue_grant_and_claim(args).await.unwrap();

    world.backend.complete(&taken.handle, None).await.unwrap();
    world.create_with(&attached_to(&[quota])).await;
    assert!(world.claim().await.is_none(), "its end freed no slot, for it held none");

    world.backend.complete(&handle, None).await.unwrap();
    assert!(world.claim().await.is_some());
}
