//! Finding and taking in one step.

use std::collections::BTreeSet;

use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::capability::CapabilitySet;
use ff_core::error::ValidationKind;
use ff_core::handle::HandleKind;
use ff_core::ids::{LaneId, Namespace};
use ff_core::policy::{ExecutionPolicy, TimeoutPolicy};
use ff_core::state::{AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState};

use super::{claim_offering, info, interrupted, policy, requiring};
use crate::cases;
use crate::expect::invalid;
use crate::world::{LEASE_MS, World};

cases!["claims":
    a_claim_takes_the_execution_under_a_lease,
    a_claim_finds_nothing_when_nothing_waits,
    a_claim_finds_nothing_in_another_lane,
    two_claims_never_share_an_execution,
    a_claim_needs_a_lease,
    a_claim_checks_the_capabilities_it_is_given,
    a_zero_lease_is_reported_before_bad_capabilities,
    a_claim_serves_only_the_namespaces_it_names,
    a_woken_attempt_is_continued,
    epochs_count_up_over_owners,
    a_claim_arms_the_attempt_timeout_of_the_policy,
    a_worker_without_capabilities_never_gets_demanding_work,
    a_capable_worker_serves_demanding_and_plain_work,
    capabilities_are_compared_verbatim,
    several_executions_are_claimed_in_one_call,
    claiming_none_of_many_is_no_fault,
    claiming_several_takes_at_most_what_waits,
    claiming_several_checks_its_input,
];

async fn a_claim_takes_the_execution_under_a_lease(world: World) {
    let (id, handle) = world.claim_one().await;

    assert_eq!(handle.kind, HandleKind::Fresh);
    let found = info(&world, id).await;
    let state = found.state_vector;
    assert_eq!(state.lifecycle_phase, LifecyclePhase::Active);
    assert_eq!(state.ownership_state, OwnershipState::Leased);
    assert_eq!(state.eligibility_state, EligibilityState::NotApplicable);
    assert_eq!(state.blocking_reason, BlockingReason::None);
    assert_eq!(state.attempt_state, AttemptState::RunningAttempt);
    assert_eq!(found.started_at, Some(world.now()));
    let snapshot = world.backend.describe_execution(id).await.unwrap().unwrap();
    let lease = snapshot.current_lease.unwrap();
    assert_eq!(lease.lease_epoch.0, 1);
    assert_eq!(lease.expires_at, world.now().plus(LEASE_MS));
    assert_eq!(lease.worker_instance_id, world.worker().1);
    assert_eq!(snapshot.total_attempt_count, 1);
}

async fn a_claim_finds_nothing_when_nothing_waits(world: World) {
    assert!(world.claim().await.is_none());
    world.claim_one().await;
    assert!(world.claim().await.is_none());
}

async fn a_claim_finds_nothing_in_another_lane(world: World) {
    world.create().await;
    let elsewhere = LaneId::new("elsewhere").unwrap();
    assert_eq!(world.backend.claim(&elsewhere, &CapabilitySet::default(), policy("worker-a")).await.unwrap(), None);
}

async fn two_claims_never_share_an_execution(world: World) {
    let (first, second) = (world.create().await, world.create().await);
    let a = world.claim_as("worker-a", LEASE_MS);
    let b = world.claim_as("worker-b", LEASE_MS);
    let (a, b) = futures_util::future::join(a, b).await;
    assert_ne!(a.unwrap().expect("one each"), b.unwrap().expect("one each"));
    for id in [first, second] {
        let lease = world.backend.describe_execution(id).await.unwrap().unwrap().current_lease.unwrap();
        assert_eq!(lease.lease_epoch.0, 1);
    }
}

async fn a_claim_needs_a_lease(world: World) {
    let id = world.create().await;
    invalid(world.claim_as("worker-a", 0).await, ValidationKind::InvalidInput);
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn a_claim_checks_the_capabilities_it_is_given(world: World) {
    world.create().await;
    for token in ["", "a,b", "a b", "\u{7}", "a\u{a0}b"] {
        invalid(claim_offering(&world, &[token]).await, ValidationKind::InvalidInput);
    }
    let many: Vec<String> = (0..257).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    invalid(claim_offering(&world, &many).await, ValidationKind::InvalidInput);
}

async fn a_zero_lease_is_reported_before_bad_capabilities(world: World) {
    let both = ClaimPolicy { lease_ttl_ms: 0, ..policy("worker-a") };
    let detail = invalid(
        world.backend.claim(&world.lane(), &CapabilitySet::new([""]), both).await,
        ValidationKind::InvalidInput,
    );
    assert!(detail.contains("lease_ttl_ms"), "{detail}");
}

async fn a_claim_serves_only_the_namespaces_it_names(world: World) {
    let other = Namespace::new("other").unwrap();
    let theirs = world.submit(CreateExecutionArgs { namespace: other.clone(), ..world.submission() }).await;
    world.advance(1);
    let ours = world.create().await;
    let only = |namespaces: BTreeSet<Namespace>| ClaimPolicy { namespaces: Some(namespaces), ..policy("worker-a") };
    let claim = |policy| async { world.backend.claim(&world.lane(), &CapabilitySet::default(), policy).await.unwrap() };

    assert!(claim(only(BTreeSet::new())).await.is_none());
    assert!(claim(only([world.namespace()].into())).await.is_some());
    assert_eq!(world.state(ours).await, PublicState::Active);
    assert!(claim(only([world.namespace()].into())).await.is_none());
    assert_eq!(world.state(theirs).await, PublicState::Waiting);
    assert!(claim(only([world.namespace(), other].into())).await.is_some());
    assert_eq!(world.state(theirs).await, PublicState::Active);
}

async fn a_woken_attempt_is_continued(world: World) {
    let id = interrupted(&world).await;
    let before = world.backend.describe_execution(id).await.unwrap().unwrap().current_attempt;

    let handle = world.claim().await.expect("the woken attempt is claimable");

    assert_eq!(handle.kind, HandleKind::Resumed);
    let after = world.backend.describe_execution(id).await.unwrap().unwrap();
    assert_eq!(
        after.current_attempt.map(|a| (a.attempt_id, a.attempt_index)),
        before.map(|a| (a.attempt_id, a.attempt_index))
    );
    assert_eq!(after.current_lease.unwrap().lease_epoch.0, 2);
    assert_eq!(after.total_attempt_count, 1);
    world.backend.complete(&handle, None).await.unwrap();
}

async fn epochs_count_up_over_owners(world: World) {
    let id = interrupted(&world).await;
    for epoch in 2..5 {
        let handle = world.claim().await.unwrap();
        let lease = world.backend.describe_execution(id).await.unwrap().unwrap().current_lease.unwrap();
        assert_eq!(lease.lease_epoch.0, epoch);
        world.backend.delay(&handle, world.now().plus(1)).await.unwrap();
        world.pass(1).await;
    }
}

async fn a_claim_arms_the_attempt_timeout_of_the_policy(world: World) {
    let timeouts = TimeoutPolicy { attempt_timeout_ms: Some(100), ..TimeoutPolicy::default() };
    let policy = ExecutionPolicy { timeout_policy: Some(timeouts), ..ExecutionPolicy::default() };
    let (id, _handle) = world.claim_one_with(&policy).await;
    world.pass(99).await;
    assert_eq!(world.state(id).await, PublicState::Active);
    world.pass(1).await;
    assert_ne!(world.state(id).await, PublicState::Active);
}

async fn a_worker_without_capabilities_never_gets_demanding_work(world: World) {
    let id = world.create_with(&requiring(&["gpu"])).await;
    assert!(world.claim().await.is_none());
    assert!(claim_offering(&world, &["cpu"]).await.unwrap().is_none());
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn a_capable_worker_serves_demanding_and_plain_work(world: World) {
    world.create_with(&requiring(&["gpu"])).await;
    world.create_with(&requiring(&["gpu", "cuda"])).await;
    world.create().await;
    for _ in 0..3 {
        assert!(claim_offering(&world, &["cuda", "gpu", "more"]).await.unwrap().is_some());
    }
}

async fn capabilities_are_compared_verbatim(world: World) {
    world.create_with(&requiring(&["GPU"])).await;
    assert!(claim_offering(&world, &["gpu"]).await.unwrap().is_none());
    assert!(claim_offering(&world, &["GPU2"]).await.unwrap().is_none());
    assert!(claim_offering(&world, &["GPU"]).await.unwrap().is_some());
}

async fn several_executions_are_claimed_in_one_call(world: World) {
    for _ in 0..40 {
        world.create().await;
    }
    let claim = |count| world.backend.claim_many(&LANE, &NOTHING, policy("worker-a"), count);
    let handles = claim(30).await.unwrap();
    assert_eq!(handles.len(), 30);
    let distinct: BTreeSet<_> = handles.iter().map(|handle| handle.opaque.as_bytes().to_vec()).collect();
    assert_eq!(distinct.len(), 30);
    assert_eq!(claim(30).await.unwrap().len(), 10);
}

static NOTHING: std::sync::LazyLock<CapabilitySet> = std::sync::LazyLock::new(CapabilitySet::default);
static LANE: std::sync::LazyLock<LaneId> = std::sync::LazyLock::new(|| LaneId::new("default").unwrap());

async fn claiming_none_of_many_is_no_fault(world: World) {
    let id = world.create().await;
    assert_eq!(world.backend.claim_many(&LANE, &NOTHING, policy("worker-a"), 0).await.unwrap(), Vec::new());
    assert_eq!(world.state(id).await, PublicState::Waiting);
}

async fn claiming_several_takes_at_most_what_waits(world: World) {
    assert_eq!(world.backend.claim_many(&LANE, &NOTHING, policy("worker-a"), 5).await.unwrap(), Vec::new());
    world.create().await;
    assert_eq!(world.backend.claim_many(&LANE, &NOTHING, policy("worker-a"), u32::MAX).await.unwrap().len(), 1);
}

async fn claiming_several_checks_its_input(world: World) {
    for lease_ttl_ms in [0, u64::MAX] {
        let wrong = ClaimPolicy { lease_ttl_ms, ..policy("worker-a") };
        invalid(world.backend.claim_many(&LANE, &NOTHING, wrong, 2).await, ValidationKind::InvalidInput);
    }
    let bad = CapabilitySet::new([""]);
    invalid(world.backend.claim_many(&LANE, &bad, policy("worker-a"), 0).await, ValidationKind::InvalidInput);
}
