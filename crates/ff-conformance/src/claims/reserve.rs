//! Grants: reserving an execution for one worker.

use ff_core::backend::claims::{
    ClaimForWorkerArgs, ClaimForWorkerOutcome, GrantKind, IssueClaimGrantArgs, IssueClaimGrantOutcome,
};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::error::{Entity, StateKind, ValidationKind};
use ff_core::ids::{ExecutionId, LaneId};
use ff_core::state::PublicState;

use super::{assert_grant_names, claim_args, grant_args, interrupted, requiring};
use crate::cases;
use crate::expect::{contention, invalid, not_found, state};
use crate::world::{World, worker};

cases!["claims":
    a_grant_reserves_an_execution,
    a_granted_execution_still_waits,
    a_grant_stands_in_the_way_of_every_other_claim,
    a_grant_that_runs_out_strands_nothing,
    a_grant_needs_a_duration,
    a_missing_execution_is_not_granted,
    only_a_claimable_execution_is_granted,
    a_second_grant_is_refused_even_to_the_same_worker,
    a_grant_in_another_lane_is_refused,
    a_grant_checks_the_workers_capabilities,
    a_grant_to_an_incapable_worker_names_what_is_missing,
    the_scheduler_grants_the_best_execution,
    the_scheduler_has_no_work,
    the_scheduler_grants_each_execution_once,
    the_scheduler_says_when_the_attempt_is_to_be_continued,
    the_scheduler_checks_its_input,
    the_scheduler_serves_only_the_namespaces_it_is_given,
];

pub(super) fn worker_args(world: &World, name: &str) -> ClaimForWorkerArgs {
    let (worker_id, worker_instance_id) = worker(name);
    ClaimForWorkerArgs {
        lane_id: world.lane(),
        worker_id,
        worker_instance_id,
        worker_capabilities: [].into(),
        grant_ttl_ms: 5000,
        namespaces: None,
        kinds: None,
    }
}

async fn a_grant_reserves_an_execution(world: World) {
    let id = world.create().await;
    let answer = world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    assert_eq!(answer, IssueClaimGrantOutcome::Granted { execution_id: id });
    world.backend.claim_execution(claim_args(&world, id)).await.unwrap();
}

async fn a_granted_execution_still_waits(world: World) {
    let id = world.create().await;
    let before = super::info(&world, id).await.state_vector;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    assert_eq!(super::info(&world, id).await.state_vector, before);
}

async fn a_grant_stands_in_the_way_of_every_other_claim(world: World) {
    let id = world.create().await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    assert!(world.claim().await.is_none(), "even for the worker that has it");
    let answer = world.backend.claim_for_worker(worker_args(&world, "worker-b")).await.unwrap();
    assert_eq!(answer, ClaimForWorkerOutcome::NoWork);
}

async fn a_grant_that_runs_out_strands_nothing(world: World) {
    let id = world.create().await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    world.advance(4999);
    assert!(world.claim().await.is_none());
    world.advance(1);
    assert!(world.claim().await.is_some());

    let other = world.create().await;
    world.backend.issue_claim_grant(grant_args(&world, other)).await.unwrap();
    world.pass(5000).await;
    world.backend.issue_claim_grant(grant_args(&world, other)).await.unwrap();
}

async fn a_grant_needs_a_duration(world: World) {
    for grant_ttl_ms in [0, u64::MAX] {
        let args = IssueClaimGrantArgs { grant_ttl_ms, ..grant_args(&world, world.execution_id()) };
        invalid(world.backend.issue_claim_grant(args).await, ValidationKind::InvalidInput);
        let args = ClaimForWorkerArgs { grant_ttl_ms, ..worker_args(&world, "worker-a") };
        invalid(world.backend.claim_for_worker(args).await, ValidationKind::InvalidInput);
    }
}

async fn a_missing_execution_is_not_granted(world: World) {
    let args = grant_args(&world, world.execution_id());
    not_found(world.backend.issue_claim_grant(args).await, Entity::Execution);
    let args = grant_args(&world, ExecutionId::new(300, world.uuid()));
    invalid(world.backend.issue_claim_grant(args).await, ValidationKind::InvalidInput);
}

async fn only_a_claimable_execution_is_granted(world: World) {
    let delayed =
        world.submit(CreateExecutionArgs { delay_until: Some(world.now().plus(10)), ..world.submission() }).await;
    contention(world.backend.issue_claim_grant(grant_args(&world, delayed)).await, "execution_not_eligible");
    let (active, _) = world.claim_one().await;
    contention(world.backend.issue_claim_grant(grant_args(&world, active)).await, "execution_not_eligible");
}

async fn a_second_grant_is_refused_even_to_the_same_worker(world: World) {
    let id = world.create().await;
    world.backend.issue_claim_grant(grant_args(&world, id)).await.unwrap();
    state(world.backend.issue_claim_grant(grant_args(&world, id)).await, StateKind::GrantAlreadyExists);
    let elsewhere = IssueClaimGrantArgs { lane_id: LaneId::new("elsewhere").unwrap(), ..grant_args(&world, id) };
    state(world.backend.issue_claim_grant(elsewhere).await, StateKind::GrantAlreadyExists);
}

async fn a_grant_in_another_lane_is_refused(world: World) {
    let id = world.create().await;
    let elsewhere = IssueClaimGrantArgs {
        lane_id: LaneId::new("elsewhere").unwrap(),
        worker_capabilities: [String::new()].into(),
        ..grant_args(&world, id)
    };
    contention(world.backend.issue_claim_grant(elsewhere).await, "execution_not_in_eligible_set");
}

async fn a_grant_checks_the_workers_capabilities(world: World) {
    let id = world.create_with(&requiring(&["gpu"])).await;
    let bad = IssueClaimGrantArgs { worker_capabilities: ["a b".to_owned()].into(), ..grant_args(&world, id) };
    let detail = invalid(world.backend.issue_claim_grant(bad).await, ValidationKind::InvalidCapabilities);
    assert_eq!(detail, "worker:control_or_whitespace");
}

async fn a_grant_to_an_incapable_worker_names_what_is_missing(world: World) {
    let id = world.create_with(&requiring(&["gpu", "cuda", "big"])).await;
    let args = IssueClaimGrantArgs { worker_capabilities: ["cuda".to_owned()].into(), ..grant_args(&world, id) };
    let detail = invalid(world.backend.issue_claim_grant(args).await, ValidationKind::CapabilityMismatch);
    assert_eq!(detail, "big,gpu");
    assert_eq!(world.state(id).await, PublicState::Waiting);
    let capable = IssueClaimGrantArgs {
        worker_capabilities: ["cuda", "gpu", "big", "x"].map(str::to_owned).into(),
        ..grant_args(&world, id)
    };
    world.backend.issue_claim_grant(capable).await.unwrap();
}

async fn the_scheduler_grants_the_best_execution(world: World) {
    world.create().await;
    let best = world.submit(CreateExecutionArgs { priority: 3, ..world.submission() }).await;
    let answer = world.backend.claim_for_worker(worker_args(&world, "worker-a")).await.unwrap();
    let ClaimForWorkerOutcome::Granted(grant) = answer else { panic!("expected a grant, got {answer:?}") };
    assert_grant_names(&grant, &world, best);
    assert_eq!(grant.kind, GrantKind::Claim);
    assert_eq!(grant.expires_at_ms, world.now().plus(5000));
    assert_eq!(world.state(best).await, PublicState::Waiting);
    world.backend.claim_execution(claim_args(&world, best)).await.unwrap();
}

async fn the_scheduler_has_no_work(world: World) {
    let answer = world.backend.claim_for_worker(worker_args(&world, "worker-a")).await.unwrap();
    assert_eq!(answer, ClaimForWorkerOutcome::NoWork);
}

async fn the_scheduler_grants_each_execution_once(world: World) {
    let (first, second) = (world.create().await, world.create().await);
    let mut granted = Vec::new();
    while let ClaimForWorkerOutcome::Granted(grant) =
        world.backend.claim_for_worker(worker_args(&world, "worker-a")).await.unwrap()
    {
        granted.push(grant.execution_id);
    }
    assert_eq!(granted, [first, second]);
}

async fn the_scheduler_says_when_the_attempt_is_to_be_continued(world: World) {
    let id = interrupted(&world).await;
    let answer = world.backend.claim_for_worker(worker_args(&world, "worker-a")).await.unwrap();
    let ClaimForWorkerOutcome::Granted(grant) = answer else { panic!("expected a grant, got {answer:?}") };
    assert_grant_names(&grant, &world, id);
    assert_eq!(grant.kind, GrantKind::Resume);
}

async fn the_scheduler_checks_its_input(world: World) {
    world.create().await;
    let zero = ClaimForWorkerArgs { grant_ttl_ms: 0, ..worker_args(&world, "worker-a") };
    invalid(world.backend.claim_for_worker(zero).await, ValidationKind::InvalidInput);
    let bad = ClaimForWorkerArgs { worker_capabilities: ["a,b".to_owned()].into(), ..worker_args(&world, "worker-a") };
    invalid(world.backend.claim_for_worker(bad).await, ValidationKind::InvalidInput);
}

async fn the_scheduler_serves_only_the_namespaces_it_is_given(world: World) {
    world.create().await;
    let other = ff_core::ids::Namespace::new("other").unwrap();
    let args = ClaimForWorkerArgs { namespaces: Some([other].into()), ..worker_args(&world, "worker-a") };
    assert_eq!(world.backend.claim_for_worker(args).await.unwrap(), ClaimForWorkerOutcome::NoWork);
}
