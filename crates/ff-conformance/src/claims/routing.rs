//! Work that no live worker can do is parked until one comes.

use ff_core::backend::workers::RegisterWorkerArgs;
use ff_core::ids::{ExecutionId, Namespace};
use ff_core::state::{BlockingReason, EligibilityState, PublicState};

use super::{claim_offering, info, requiring};
use crate::cases;
use crate::world::{World, worker};

cases!["claims":
    work_nobody_can_do_is_parked,
    a_registration_frees_what_was_parked_for_it,
    a_registration_without_the_capabilities_frees_nothing,
    work_that_a_live_worker_can_do_is_not_parked,
    a_worker_of_another_namespace_does_not_count,
    a_worker_that_is_gone_does_not_count,
    a_capable_claim_takes_parked_work_without_a_registration,
    parked_work_for_others_hides_none_from_a_capable_claim,
    parked_work_of_plain_lanes_is_not_looked_at,
];

fn registration(world: &World, name: &str, tokens: &[&str]) -> RegisterWorkerArgs {
    let (worker_id, worker_instance_id) = worker(name);
    RegisterWorkerArgs {
        worker_id,
        worker_instance_id,
        namespace: world.namespace(),
        lanes: [world.lane()].into(),
        capabilities: tokens.iter().map(|token| (*token).to_owned()).collect(),
        liveness_ttl_ms: 10_000,
    }
}

async fn parked(world: &World) -> ExecutionId {
    let id = world.create_with(&requiring(&["gpu"])).await;
    assert!(world.claim().await.is_none());
    id
}

async fn eligibility(world: &World, id: ExecutionId) -> EligibilityState {
    info(world, id).await.state_vector.eligibility_state
}

async fn work_nobody_can_do_is_parked(world: World) {
    let id = parked(&world).await;
    let found = info(&world, id).await;
    assert_eq!(found.state_vector.eligibility_state, EligibilityState::BlockedByRoute);
    assert_eq!(found.state_vector.blocking_reason, BlockingReason::WaitingForCapableWorker);
    assert_eq!(found.public_state, PublicState::Waiting);
    assert!(found.blocking_detail.contains("gpu"), "{}", found.blocking_detail);
}

async fn a_registration_frees_what_was_parked_for_it(world: World) {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(parked(&world).await);
    }
    world.backend.register_worker(registration(&world, "worker-g", &["gpu", "cuda"])).await.unwrap();
    for id in ids {
        assert_eq!(eligibility(&world, id).await, EligibilityState::EligibleNow);
    }
    assert!(claim_offering(&world, &["gpu"]).await.unwrap().is_some());
}

async fn a_registration_without_the_capabilities_frees_nothing(world: World) {
    let id = parked(&world).await;
    world.backend.register_worker(registration(&world, "worker-c", &["cpu"])).await.unwrap();
    assert_eq!(eligibility(&world, id).await, EligibilityState::BlockedByRoute);
}

async fn work_that_a_live_worker_can_do_is_not_parked(world: World) {
    world.backend.register_worker(registration(&world, "worker-g", &["gpu"])).await.unwrap();
    let id = parked(&world).await;
    assert_eq!(eligibility(&world, id).await, EligibilityState::EligibleNow);
}

async fn a_worker_of_another_namespace_does_not_count(world: World) {
    let other = Namespace::new("other").unwrap();
    let theirs = RegisterWorkerArgs { namespace: other, ..registration(&world, "worker-g", &["gpu"]) };
    world.backend.register_worker(theirs).await.unwrap();
    let id = parked(&world).await;
    assert_eq!(eligibility(&world, id).await, EligibilityState::BlockedByRoute);
}

async fn a_worker_that_is_gone_does_not_count(world: World) {
    world.backend.register_worker(registration(&world, "worker-g", &["gpu"])).await.unwrap();
    world.pass(10_000).await;
    let id = parked(&world).await;
    assert_eq!(eligibility(&world, id).await, EligibilityState::BlockedByRoute);
}

async fn a_capable_claim_takes_parked_work_without_a_registration(world: World) {
    let id = parked(&world).await;
    assert!(claim_offering(&world, &["gpu"]).await.unwrap().is_some());
    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn parked_work_for_others_hides_none_from_a_capable_claim(world: World) {
    for _ in 0..20 {
        parked(&world).await;
    }
    world.advance(1);
    let id = world.create_with(&requiring(&["ssd"])).await;
    assert!(world.claim().await.is_none());
    assert_eq!(eligibility(&world, id).await, EligibilityState::BlockedByRoute);

    assert!(claim_offering(&world, &["ssd"]).await.unwrap().is_some());

    assert_eq!(world.state(id).await, PublicState::Active);
}

async fn parked_work_of_plain_lanes_is_not_looked_at(world: World) {
    let id = parked(&world).await;
    let before = info(&world, id).await;
    world.advance(5);
    assert!(world.claim().await.is_none());
    assert_eq!(info(&world, id).await, before);
}
