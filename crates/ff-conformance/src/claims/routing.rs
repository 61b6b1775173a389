//! Work that no live worker can do is parked until one comes.

use ff_core::backend::claims::BlockRouteArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::workers::{HeartbeatWorkerArgs, MarkWorkerDeadArgs, RegisterWorkerArgs};
use ff_core::ids::{ExecutionId, Namespace};
use ff_core::state::{BlockingReason, EligibilityState, PublicState};

use super::{claim_kinds, claim_offering, info, of_kind, requiring, set};
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
    work_of_a_kind_that_nobody_handles_is_parked,
    a_registration_frees_what_was_parked_for_its_kind,
    work_that_a_live_worker_handles_is_not_parked,
    a_worker_that_handled_it_and_is_gone_does_not_count,
    a_worker_that_handles_it_no_longer_does_not_count,
    a_claim_frees_what_was_parked_for_its_kind,
    parked_work_tells_whether_kind_or_capabilities_are_lacking,
    work_that_somebody_parked_is_freed_by_those_who_handle_it,
];

fn registration(world: &World, name: &str, tokens: &[&str]) -> RegisterWorkerArgs {
    let (worker_id, worker_instance_id) = worker(name);
    RegisterWorkerArgs {
        worker_id,
        worker_instance_id,
        namespace: world.namespace(),
        lanes: [world.lane()].into(),
        capabilities: tokens.iter().map(|token| (*token).to_owned()).collect(),
        kinds: None,
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

fn handling(world: &World, name: &str, kinds: &[&str]) -> RegisterWorkerArgs {
    RegisterWorkerArgs { kinds: Some(set(kinds)), ..registration(world, name, &[]) }
}

/// Work that a claim for another kind came across.
async fn passed_over(world: &World, kind: &str) -> ExecutionId {
    let id = world.submit(of_kind(world, kind)).await;
    assert!(claim_kinds(world, &["other"]).await.is_none());
    id
}

async fn work_of_a_kind_that_nobody_handles_is_parked(world: World) {
    world.backend.register_worker(handling(&world, "worker-m", &["mail"])).await.unwrap();
    let id = passed_over(&world, "bill").await;
    let found = info(&world, id).await;
    assert_eq!(found.state_vector.eligibility_state, EligibilityState::BlockedByRoute);
    assert_eq!(found.state_vector.blocking_reason, BlockingReason::WaitingForCapableWorker);
    assert_eq!(found.public_state, PublicState::Waiting);
    assert_eq!(found.blocking_detail, "no live worker of lane default handles kind bill");
}

async fn a_registration_frees_what_was_parked_for_its_kind(world: World) {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(passed_over(&world, "bill").await);
    }
    world.backend.register_worker(handling(&world, "worker-m", &["mail"])).await.unwrap();
    for id in &ids {
        assert_eq!(eligibility(&world, *id).await, EligibilityState::BlockedByRoute);
    }
    world.backend.register_worker(handling(&world, "worker-b", &["bill"])).await.unwrap();
    for id in ids {
        assert_eq!(eligibility(&world, id).await, EligibilityState::EligibleNow);
    }
}

async fn work_that_a_live_worker_handles_is_not_parked(world: World) {
    world.backend.register_worker(handling(&world, "worker-b", &["bill", "mail"])).await.unwrap();
    let bill = passed_over(&world, "bill").await;
    assert_eq!(eligibility(&world, bill).await, EligibilityState::EligibleNow);
    world.backend.register_worker(registration(&world, "worker-a", &[])).await.unwrap();
    let call = passed_over(&world, "call").await;
    assert_eq!(eligibility(&world, call).await, EligibilityState::EligibleNow, "who names no kinds handles all");
}

async fn a_worker_that_handled_it_and_is_gone_does_not_count(world: World) {
    world.backend.register_worker(handling(&world, "worker-b", &["bill"])).await.unwrap();
    let lapsed = passed_over(&world, "bill").await;
    world.pass(9_999).await;
    assert!(claim_kinds(&world, &["other"]).await.is_none());
    assert_eq!(eligibility(&world, lapsed).await, EligibilityState::EligibleNow);
    world.advance(1);
    assert!(claim_kinds(&world, &["other"]).await.is_none());
    assert_eq!(eligibility(&world, lapsed).await, EligibilityState::BlockedByRoute);

    world.backend.register_worker(handling(&world, "worker-b", &["bill"])).await.unwrap();
    assert!(claim_kinds(&world, &["other"]).await.is_none());
    assert_eq!(eligibility(&world, lapsed).await, EligibilityState::EligibleNow);
    let (_, worker_instance_id) = worker("worker-b");
    let gone = MarkWorkerDeadArgs { worker_instance_id, namespace: world.namespace(), reason: "crashed".into() };
    world.backend.mark_worker_dead(gone).await.unwrap();
    assert!(claim_kinds(&world, &["other"]).await.is_none());
    assert_eq!(eligibility(&world, lapsed).await, EligibilityState::BlockedByRoute);
}

async fn a_worker_that_handles_it_no_longer_does_not_count(world: World) {
    world.backend.register_worker(handling(&world, "worker-b", &["bill"])).await.unwrap();
    let id = passed_over(&world, "bill").await;
    assert_eq!(eligibility(&world, id).await, EligibilityState::EligibleNow);
    world.backend.register_worker(handling(&world, "worker-b", &["mail"])).await.unwrap();
    assert!(claim_kinds(&world, &["other"]).await.is_none());
    assert_eq!(eligibility(&world, id).await, EligibilityState::BlockedByRoute);
}

async fn a_claim_frees_what_was_parked_for_its_kind(world: World) {
    for _ in 0..20 {
        passed_over(&world, "call").await;
    }
    for _ in 0..2 {
        passed_over(&world, "bill").await;
    }
    assert!(claim_kinds(&world, &["bill"]).await.is_some());
    assert!(claim_kinds(&world, &["bill"]).await.is_some());
    assert!(claim_kinds(&world, &["bill"]).await.is_none());
    for _ in 0..20 {
        assert!(world.claim().await.is_some(), "who names no kinds handles all");
    }
}

async fn parked_work_tells_whether_kind_or_capabilities_are_lacking(world: World) {
    let able = |kinds: &[&str]| RegisterWorkerArgs {
        kinds: Some(set(kinds)),
        ..registration(&world, "worker-b", &["ssd", "gpu"])
    };
    let detail = async |id| info(&world, id).await.blocking_detail;
    let submission = CreateExecutionArgs { policy: Some(requiring(&["gpu", "eu"]).into()), ..of_kind(&world, "bill") };
    let id = world.submit(submission).await;
    world.backend.register_worker(able(&["mail"])).await.unwrap();
    assert!(claim_kinds(&world, &["bill"]).await.is_none());
    assert_eq!(detail(id).await, "no live worker of lane default handles kind bill");
    let submission = CreateExecutionArgs { policy: Some(requiring(&["gpu", "eu"]).into()), ..of_kind(&world, "bill") };
    let id = world.submit(submission).await;
    world.backend.register_worker(able(&["bill"])).await.unwrap();
    assert!(claim_kinds(&world, &["bill"]).await.is_none());
    assert_eq!(detail(id).await, "no live worker of lane default offers all of: eu, gpu");
}

async fn work_that_somebody_parked_is_freed_by_those_who_handle_it(world: World) {
    world.backend.register_worker(handling(&world, "worker-m", &["mail"])).await.unwrap();
    world.backend.register_worker(handling(&world, "worker-b", &["bill"])).await.unwrap();
    let id = world.submit(of_kind(&world, "bill")).await;
    let by_hand = BlockRouteArgs {
        execution_id: id,
        lane_id: world.lane(),
        reason_code: "waiting_for_capable_worker".into(),
        reason_detail: "not now".into(),
    };
    world.backend.block_route(by_hand).await.unwrap();
    assert!(claim_kinds(&world, &["bill"]).await.is_none(), "a claim does not undo it");
    let beat = async |name| {
        let (_, worker_instance_id) = worker(name);
        let args = HeartbeatWorkerArgs { worker_instance_id, namespace: world.namespace() };
        world.backend.heartbeat_worker(args).await.unwrap();
    };
    beat("worker-m").await;
    assert_eq!(eligibility(&world, id).await, EligibilityState::BlockedByRoute);
    beat("worker-b").await;
    assert_eq!(eligibility(&world, id).await, EligibilityState::EligibleNow);
}
