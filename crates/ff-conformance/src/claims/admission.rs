//! Budgets and quotas at claim time, the same on every path.

use std::collections::BTreeSet;
use std::time::Duration;

use ff_core::backend::budgets::{CreateBudgetArgs, ReportUsageAdminArgs};
use ff_core::backend::claims::{ClaimForWorkerArgs, ClaimForWorkerOutcome, ClaimPolicy, IssueClaimGrantArgs};
use ff_core::backend::quotas::CreateQuotaPolicyArgs;
use ff_core::capability::CapabilitySet;
use ff_core::handle::HandleKind;
use ff_core::ids::{BudgetId, ExecutionId, LaneId, QuotaPolicyId};
use ff_core::policy::ExecutionPolicy;
use ff_core::state::{BlockingReason, EligibilityState, PublicState};
use serde_json::json;

use super::reserve::worker_args;
use super::{claim_args, claim_offering, info, policy};
use crate::world::{LEASE_MS, World};
use crate::{cases, expect};

cases!["claims":
    a_claim_asks_the_quota,
    a_denied_execution_shows_why_it_waits,
    the_scheduler_asks_the_quota_too,
    an_explicit_grant_asks_the_quota_too,
    an_explicit_grant_that_is_refused_takes_no_slot,
    a_freed_slot_lets_the_next_one_in,
    a_full_window_opens_with_time,
    a_closed_quota_hides_no_other_work,
    a_closed_quota_parks_one_execution_only,
    a_quota_that_fills_up_on_the_way_hides_no_other_work,
    a_claim_asks_the_budget,
    a_spent_budget_hides_no_other_work,
    a_spent_budget_hides_no_other_work_from_a_claim_that_waits,
    lost_work_of_a_spent_budget_hides_no_other_work,
    a_budget_of_the_lane_counts_for_all_its_work,
    an_operator_asks_neither,
    a_worker_that_lacks_capabilities_takes_no_slot,
    a_grant_that_runs_out_gives_its_slot_back,
    a_consumed_grant_keeps_its_slot,
    a_scheduler_grants_no_more_than_the_quota_admits,
];

/// More executions than one claim looks at in vain.
const MANY: usize = 70;

async fn quota(world: &World, limits: serde_json::Value) -> QuotaPolicyId {
    let id = QuotaPolicyId::from_uuid(world.uuid());
    let mut args = limits;
    args["quota_policy_id"] = json!(id);
    args["namespace"] = json!(world.namespace());
    let args: CreateQuotaPolicyArgs = serde_json::from_value(args).unwrap();
    world.backend.create_quota_policy(args).await.unwrap();
    id
}

async fn budget(world: &World, scope: serde_json::Value) -> BudgetId {
    let id = BudgetId::from_uuid(world.uuid());
    let mut args = scope;
    args["budget_id"] = json!(id);
    args["namespace"] = json!(world.namespace());
    args["dimensions"] = json!(["usd"]);
    args["hard_limits"] = json!([10]);
    args["soft_limits"] = json!([0]);
    let args: CreateBudgetArgs = serde_json::from_value(args).unwrap();
    world.backend.create_budget(args).await.unwrap();
    id
}

async fn spend(world: &World, budget: BudgetId, usd: u64) {
    let args: ReportUsageAdminArgs = serde_json::from_value(json!({"dimensions": ["usd"], "deltas": [usd]})).unwrap();
    world.backend.report_usage_admin(budget, args).await.unwrap();
}

async fn limited(world: &World, quota: QuotaPolicyId) -> ExecutionId {
    world.create_with(&ExecutionPolicy { quota_policy_ids: vec![quota], ..ExecutionPolicy::default() }).await
}

async fn budgeted(world: &World, budget: BudgetId) -> ExecutionId {
    world.create_with(&ExecutionPolicy { budget_ids: vec![budget], ..ExecutionPolicy::default() }).await
}

async fn a_claim_asks_the_quota(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    let first = limited(&world, quota).await;
    let second = limited(&world, quota).await;
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());
    assert_eq!(world.state(first).await, PublicState::Active);
    assert_ne!(world.state(second).await, PublicState::Active);
}

async fn a_denied_execution_shows_why_it_waits(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    limited(&world, quota).await;
    let second = limited(&world, quota).await;
    world.claim().await.unwrap();
    assert!(world.claim().await.is_none());
    let found = info(&world, second).await;
    assert_eq!(found.public_state, PublicState::RateLimited);
    assert_eq!(found.state_vector.eligibility_state, EligibilityState::BlockedByQuota);
    assert_eq!(found.state_vector.blocking_reason, BlockingReason::WaitingForQuota);
    assert!(found.blocking_detail.contains(&quota.to_string()), "{}", found.blocking_detail);
}

fn reservation(world: &World, execution_id: ExecutionId) -> IssueClaimGrantArgs {
    let (worker_id, worker_instance_id) = world.worker();
    IssueClaimGrantArgs {
        execution_id,
        lane_id: world.lane(),
        worker_id,
        worker_instance_id,
        worker_capabilities: BTreeSet::new(),
        grant_ttl_ms: 5_000,
    }
}

async fn an_explicit_grant_asks_the_quota_too(world: World) {
    let quota = quota(&world, json!({"window_seconds": 60, "max_requests_per_window": 0, "max_concurrent": 1})).await;
    let (first, second) = (limited(&world, quota).await, limited(&world, quota).await);
    world.backend.issue_claim_grant(reservation(&world, first)).await.unwrap();
    let answer = world.backend.issue_claim_grant(reservation(&world, second)).await;
    expect::contention(answer, "execution_not_eligible");
    assert_eq!(world.state(second).await, PublicState::RateLimited);
}

async fn an_explicit_grant_that_is_refused_takes_no_slot(world: World) {
    let quota = quota(&world, json!({"window_seconds": 60, "max_requests_per_window": 0, "max_concurrent": 1})).await;
    let id = limited(&world, quota).await;
    let other_lane = IssueClaimGrantArgs { lane_id: LaneId::new("other").unwrap(), ..reservation(&world, id) };
    expect::contention(world.backend.issue_claim_grant(other_lane).await, "execution_not_in_eligible_set");
    assert!(world.claim().await.is_some());
}

async fn the_scheduler_asks_the_quota_too(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    limited(&world, quota).await;
    let second = limited(&world, quota).await;
    world.claim().await.unwrap();
    let answer = world.backend.claim_for_worker(worker_args(&world, "worker-b")).await.unwrap();
    assert_eq!(answer, ClaimForWorkerOutcome::NoWork);
    assert_eq!(world.state(second).await, PublicState::RateLimited);
}

async fn a_freed_slot_lets_the_next_one_in(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    for _ in 0..3 {
        limited(&world, quota).await;
    }
    for _ in 0..3 {
        let handle = world.claim().await.expect("one slot");
        assert!(world.claim().await.is_none());
        world.backend.complete(&handle, None).await.unwrap();
        world.run_due().await;
    }
}

async fn a_full_window_opens_with_time(world: World) {
    let quota = quota(&world, json!({"max_requests_per_window": 2, "window_seconds": 10})).await;
    for _ in 0..3 {
        limited(&world, quota).await;
    }
    for _ in 0..2 {
        let handle = world.claim().await.expect("within the rate");
        world.backend.complete(&handle, None).await.unwrap();
    }
    assert!(world.claim().await.is_none());
    world.pass(9_000).await;
    assert!(world.claim().await.is_none());
    world.pass(1_000).await;
    assert!(world.claim().await.is_some());
}

async fn a_closed_quota_hides_no_other_work(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    for _ in 0..30 {
        limited(&world, quota).await;
    }
    world.advance(1);
    let plain = world.create().await;
    world.claim().await.unwrap();
    assert!(world.claim().await.is_some());
    assert_eq!(world.state(plain).await, PublicState::Active);
}

async fn a_closed_quota_parks_one_execution_only(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(limited(&world, quota).await);
    }
    world.claim().await.unwrap();
    for _ in 0..3 {
        assert!(world.claim().await.is_none());
    }
    let mut parked = 0;
    for id in ids {
        parked += usize::from(world.state(id).await == PublicState::RateLimited);
    }
    assert_eq!(parked, 1);
}

async fn a_claim_asks_the_budget(world: World) {
    let budget = budget(&world, json!({})).await;
    let id = budgeted(&world, budget).await;
    spend(&world, budget, 10).await;

    assert!(world.claim().await.is_none());

    let found = info(&world, id).await;
    assert_eq!(found.public_state, PublicState::RateLimited);
    assert_eq!(found.state_vector.blocking_reason, BlockingReason::WaitingForBudget);
    world.backend.reset_budget(budget).await.unwrap();
    world.run_due().await;
    assert!(world.claim().await.is_some());
}

async fn a_spent_budget_hides_no_other_work(world: World) {
    let budget = budget(&world, json!({})).await;
    for _ in 0..30 {
        budgeted(&world, budget).await;
    }
    world.advance(1);
    let plain = world.create().await;
    spend(&world, budget, 10).await;
    assert!(world.claim().await.is_some());
    assert_eq!(world.state(plain).await, PublicState::Active);
}

async fn a_spent_budget_hides_no_other_work_from_a_claim_that_waits(world: World) {
    let budget = budget(&world, json!({})).await;
    for _ in 0..MANY {
        budgeted(&world, budget).await;
    }
    world.advance(1);
    let plain = world.create().await;
    spend(&world, budget, 10).await;
    let patient = ClaimPolicy { max_wait_ms: Some(1_000), ..policy("worker-a") };
    let (lane, nothing) = (world.lane(), CapabilitySet::default());
    let claim = world.backend.claim(&lane, &nothing, patient);
    let answer = tokio::time::timeout(Duration::from_secs(10), claim).await.expect("it need not wait");
    assert!(answer.unwrap().is_some());
    assert_eq!(world.state(plain).await, PublicState::Active);
}

async fn lost_work_of_a_spent_budget_hides_no_other_work(world: World) {
    let budget = budget(&world, json!({})).await;
    for _ in 0..MANY {
        budgeted(&world, budget).await;
        world.claim().await.unwrap();
    }
    spend(&world, budget, 10).await;
    world.pass(LEASE_MS).await;
    let plain = world.create().await;
    assert!(world.claim().await.is_none(), "a claim gives up after some vain tries");
    assert!(world.claim().await.is_some());
    assert_eq!(world.state(plain).await, PublicState::Active);

    world.backend.reset_budget(budget).await.unwrap();
    world.pass(30_000).await;
    assert!(world.claim().await.is_some_and(|handle| handle.kind == HandleKind::Reclaimed));
}

async fn a_budget_of_the_lane_counts_for_all_its_work(world: World) {
    let scope = json!({"scope_type": "lane", "scope_id": world.lane().as_str()});
    let before = world.create().await;
    let budget = budget(&world, scope).await;
    let after = world.create().await;
    spend(&world, budget, 10).await;
    assert!(world.claim().await.is_some(), "scopes are resolved at creation");
    assert_eq!(world.state(before).await, PublicState::Active);
    assert!(world.claim().await.is_none());
    assert_eq!(world.state(after).await, PublicState::RateLimited);
}

async fn an_operator_asks_neither(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    limited(&world, quota).await;
    let second = limited(&world, quota).await;
    world.claim().await.unwrap();
    let args = serde_json::from_value(json!({
        "execution_id": second, "lane_id": world.lane(), "lease_duration_ms": 1000,
    }))
    .unwrap();
    world.backend.issue_grant_and_claim(args).await.unwrap();
    assert_eq!(world.state(second).await, PublicState::Active);
}

async fn a_worker_that_lacks_capabilities_takes_no_slot(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    let mut policy = super::requiring(&["gpu"]);
    policy.quota_policy_ids = vec![quota];
    let demanding = world.create_with(&policy).await;
    assert!(world.claim().await.is_none());
    let plain = limited(&world, quota).await;
    assert!(world.claim().await.is_some());
    assert_eq!((world.state(demanding).await, world.state(plain).await), (PublicState::Waiting, PublicState::Active));
    assert!(claim_offering(&world, &["gpu"]).await.unwrap().is_none());
}

async fn grant(world: &World) -> ClaimForWorkerOutcome {
    let args = ClaimForWorkerArgs { grant_ttl_ms: 1000, ..worker_args(world, "worker-a") };
    world.backend.claim_for_worker(args).await.unwrap()
}

async fn a_grant_that_runs_out_gives_its_slot_back(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    limited(&world, quota).await;
    limited(&world, quota).await;
    assert!(matches!(grant(&world).await, ClaimForWorkerOutcome::Granted(_)));
    assert!(world.claim().await.is_none());
    world.pass(1000).await;
    assert!(world.claim().await.is_some());
    assert!(world.claim().await.is_none());
}

async fn a_consumed_grant_keeps_its_slot(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    let first = limited(&world, quota).await;
    limited(&world, quota).await;
    let ClaimForWorkerOutcome::Granted(granted) = grant(&world).await else { panic!("expected a grant") };
    assert_eq!(granted.execution_id, first);
    world.backend.claim_execution(claim_args(&world, first)).await.unwrap();
    world.pass(2000).await;
    assert!(world.claim().await.is_none());
}

async fn a_scheduler_grants_no_more_than_the_quota_admits(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 2})).await;
    for _ in 0..4 {
        limited(&world, quota).await;
    }
    for _ in 0..2 {
        assert!(matches!(grant(&world).await, ClaimForWorkerOutcome::Granted(_)));
    }
    assert_eq!(grant(&world).await, ClaimForWorkerOutcome::NoWork);
}

async fn a_quota_that_fills_up_on_the_way_hides_no_other_work(world: World) {
    let quota = quota(&world, json!({"max_concurrent": 1})).await;
    for _ in 0..100 {
        limited(&world, quota).await;
    }
    world.advance(1);
    let plain = world.create().await;
    let claimed = world.backend.claim_many(&world.lane(), &CapabilitySet::default(), policy("worker-a"), 10).await;
    assert_eq!(claimed.unwrap().len(), 2);
    assert_eq!(world.state(plain).await, PublicState::Active);
}
