//! How long a concurrency slot is held.

use ff_core::backend::attempts::{CancelExecutionArgs, FailureReason};
use ff_core::backend::budgets::CreateBudgetArgs;
use ff_core::backend::leases::RevokeLeaseArgs;
use ff_core::backend::quotas::{CheckAdmissionArgs, CheckAdmissionResult, CreateQuotaPolicyArgs, ReleaseAdmissionArgs};
use ff_core::backend::signals::SeedWaitpointHmacSecretArgs;
use ff_core::backend::suspension::{ResumeCondition, SuspendArgs, SuspensionReasonCode, WaitpointBinding};
use ff_core::handle::{Handle, HandleKind};
use ff_core::ids::{BudgetId, ExecutionId, FenceTriple, QuotaPolicyId, SuspensionId, WaitpointId};
use ff_core::policy::{BackoffStrategy, ExecutionPolicy, RetryPolicy, TimeoutPolicy};
use ff_core::rules::fence::CancelSource;
use ff_core::rules::retry::FailureClass;
use ff_core::state::PublicState;

use super::{asking, at_once, attached_to, check, create, unbounded};
use crate::cases;
use crate::world::{LEASE_MS, World};

cases!["quotas":
    a_slot_is_held_as_long_as_the_attempt_runs,
    completing_frees_the_slot,
    failing_for_good_frees_the_slot,
    scheduling_a_retry_frees_the_slot,
    a_delay_frees_the_slot,
    suspending_frees_the_slot,
    cancelling_frees_the_slot,
    a_deadline_frees_the_slot,
    a_lost_lease_keeps_the_slot,
    a_lost_execution_goes_on_with_its_own_slot,
    a_lost_execution_that_is_cancelled_frees_its_slot,
    a_revoked_lease_keeps_the_slot,
    a_settlement_that_was_not_applied_at_once_is_applied_when_due,
    releasing_an_admission_frees_the_slot_of_a_running_attempt,
    an_ended_attempt_that_was_released_frees_nothing_more,
    a_claimed_admission_outlives_its_reservation,
    a_retried_execution_takes_a_slot_again,
];

/// A policy of one slot, the execution that holds it, and another one that waits for it.
async fn contended(world: &World, policy: ExecutionPolicy) -> (QuotaPolicyId, ExecutionId, Handle, ExecutionId) {
    let quota = at_once(world, 1).await;
    let policy = ExecutionPolicy { quota_policy_ids: vec![quota], ..policy };
    let (first, handle) = world.claim_one_with(&policy).await;
    let second = world.create_with(&attached_to(&[quota])).await;
    assert!(world.claim().await.is_none());
    (quota, first, handle, second)
}

async fn is_claimed_next(world: &World, expected: ExecutionId) {
    assert!(world.claim().await.is_some(), "a slot is free");
    assert_eq!(world.state(expected).await, PublicState::Active);
    assert!(world.claim().await.is_none(), "only one slot is free");
}

async fn a_slot_is_held_as_long_as_the_attempt_runs(world: World) {
    let args = CreateQuotaPolicyArgs {
        window_seconds: 1,
        max_requests_per_window: 100,
        max_concurrent: 1,
        ..unbounded(&world)
    };
    let quota = create(&world, args).await;
    let (_, handle) = world.claim_one_with(&attached_to(&[quota])).await;
    world.create_with(&attached_to(&[quota])).await;
    for _ in 0..20 {
        world.pass(LEASE_MS / 3).await;
        world.backend.renew(&handle).await.unwrap();
        assert!(world.claim().await.is_none(), "the window is over, the attempt is not");
    }
    world.backend.complete(&handle, None).await.unwrap();
    assert!(world.claim().await.is_some());
}

async fn completing_frees_the_slot(world: World) {
    let (_, _, handle, second) = contended(&world, ExecutionPolicy::default()).await;
    world.backend.complete(&handle, None).await.unwrap();
    is_claimed_next(&world, second).await;
}

async fn failing_for_good_frees_the_slot(world: World) {
    let (_, _, handle, second) = contended(&world, ExecutionPolicy::default()).await;
    world.backend.fail(&handle, FailureReason::new("no"), FailureClass::Permanent).await.unwrap();
    is_claimed_next(&world, second).await;
}

fn retrying() -> ExecutionPolicy {
    let backoff = BackoffStrategy::Fixed { delay_ms: 600_000 };
    let retry_policy = RetryPolicy { max_retries: 3, backoff, ..RetryPolicy::default() };
    ExecutionPolicy { retry_policy: Some(retry_policy), ..ExecutionPolicy::default() }
}

async fn scheduling_a_retry_frees_the_slot(world: World) {
    let (_, first, handle, second) = contended(&world, retrying()).await;
    world.backend.fail(&handle, FailureReason::new("later"), FailureClass::Transient).await.unwrap();
    assert_eq!(world.state(first).await, PublicState::Delayed);
    is_claimed_next(&world, second).await;
}

async fn a_delay_frees_the_slot(world: World) {
    let (_, _, handle, second) = contended(&world, ExecutionPolicy::default()).await;
    world.backend.delay(&handle, world.now().plus(600_000)).await.unwrap();
    is_claimed_next(&world, second).await;
}

async fn suspending_frees_the_slot(world: World) {
    let secret = SeedWaitpointHmacSecretArgs { kid: "k1".into(), secret_hex: "5e".repeat(32).as_str().into() };
    world.backend.seed_waitpoint_hmac_secret(secret).await.unwrap();
    let (_, first, handle, second) = contended(&world, ExecutionPolicy::default()).await;
    let args = SuspendArgs::new(
        SuspensionId::from_uuid(world.uuid()),
        WaitpointBinding::fresh(WaitpointId::from_uuid(world.uuid())),
        ResumeCondition::OperatorOnly {},
        SuspensionReasonCode::ManualPause,
    );
    world.backend.suspend(&handle, args).await.unwrap();
    assert_eq!(world.state(first).await, PublicState::Suspended);
    is_claimed_next(&world, second).await;
}

fn override_cancel(execution_id: ExecutionId) -> CancelExecutionArgs {
    CancelExecutionArgs {
        execution_id,
        reason: "enough".into(),
        source: CancelSource::OperatorOverride,
        fence: FenceTriple::default(),
    }
}

async fn cancelling_frees_the_slot(world: World) {
    let (_, first, _, second) = contended(&world, ExecutionPolicy::default()).await;
    world.backend.cancel_execution(override_cancel(first)).await.unwrap();
    is_claimed_next(&world, second).await;
}

async fn a_deadline_frees_the_slot(world: World) {
    let timeout = TimeoutPolicy { attempt_timeout_ms: None, execution_deadline_ms: Some(10_000) };
    let policy = ExecutionPolicy { timeout_policy: Some(timeout), ..ExecutionPolicy::default() };
    let (_, first, _, second) = contended(&world, policy).await;
    world.pass(10_000).await;
    assert_eq!(world.state(first).await, PublicState::Expired);
    is_claimed_next(&world, second).await;
}

async fn a_lost_lease_keeps_the_slot(world: World) {
    let (quota, _, _, _) = contended(&world, ExecutionPolicy::default()).await;
    world.pass(LEASE_MS).await;
    let args = CheckAdmissionArgs { concurrency_cap: 1, ..asking(world.execution_id()) };
    assert_eq!(check(&world, quota, args).await, CheckAdmissionResult::ConcurrencyExceeded);
}

async fn a_lost_execution_goes_on_with_its_own_slot(world: World) {
    let (_, first, _, second) = contended(&world, ExecutionPolicy::default()).await;
    world.pass(LEASE_MS).await;

    let handle = world.claim().await.expect("a full quota does not hold back who has its slot already");

    assert_eq!(handle.kind, HandleKind::Reclaimed);
    assert_eq!(world.backend.read_total_attempt_count(first).await.unwrap(), 2);
    assert!(world.claim().await.is_none());
    world.pass(10_000).await;
    assert!(world.claim().await.is_none(), "the new owner keeps the slot");
    world.backend.complete(&handle, None).await.unwrap();
    is_claimed_next(&world, second).await;
}

async fn a_lost_execution_that_is_cancelled_frees_its_slot(world: World) {
    let (_, first, _, second) = contended(&world, ExecutionPolicy::default()).await;
    world.pass(LEASE_MS).await;
    world.backend.cancel_execution(override_cancel(first)).await.unwrap();
    is_claimed_next(&world, second).await;
}

async fn a_revoked_lease_keeps_the_slot(world: World) {
    let (_, first, _, _) = contended(&world, ExecutionPolicy::default()).await;
    let args = RevokeLeaseArgs {
        execution_id: first,
        expected_lease_id: None,
        worker_instance_id: None,
        reason: "maintenance".into(),
    };
    world.backend.revoke_lease(args).await.unwrap();
    world.pass(600_000).await;
    assert!(world.claim().await.is_none());
}

async fn a_settlement_that_was_not_applied_at_once_is_applied_when_due(world: World) {
    let budget = CreateBudgetArgs {
        budget_id: BudgetId::from_uuid(world.uuid()),
        namespace: world.namespace(),
        scope_type: "policy".into(),
        scope_id: String::new(),
        on_hard_limit: "cancel_all".into(),
        on_soft_limit: "warn".into(),
        reset_interval_ms: 0,
        dimensions: vec!["usd".into()],
        hard_limits: vec![1],
        soft_limits: vec![0],
    };
    let budget_id = budget.budget_id;
    world.backend.create_budget(budget).await.unwrap();
    let policy = ExecutionPolicy { budget_ids: vec![budget_id], ..ExecutionPolicy::default() };
    let (_, first, _, second) = contended(&world, policy).await;
    let over = ff_core::backend::budgets::ReportUsageAdminArgs {
        dimensions: vec!["usd".into()],
        deltas: vec![2],
        dedup_key: None,
    };
    world.backend.report_usage_admin(budget_id, over).await.unwrap();

    world.run_due().await;

    assert_eq!(world.state(first).await, PublicState::Cancelled);
    is_claimed_next(&world, second).await;
}

async fn releasing_an_admission_frees_the_slot_of_a_running_attempt(world: World) {
    let (quota, first, _, second) = contended(&world, ExecutionPolicy::default()).await;
    let args = ReleaseAdmissionArgs { quota_policy_id: quota, execution_id: first };
    world.backend.release_admission(args).await.unwrap();
    world.run_due().await;
    is_claimed_next(&world, second).await;
}

async fn an_ended_attempt_that_was_released_frees_nothing_more(world: World) {
    let (quota, first, handle, second) = contended(&world, ExecutionPolicy::default()).await;
    world.create_with(&attached_to(&[quota])).await;
    let args = ReleaseAdmissionArgs { quota_policy_id: quota, execution_id: first };
    world.backend.release_admission(args).await.unwrap();
    is_claimed_next(&world, second).await;

    world.backend.complete(&handle, None).await.unwrap();
    world.pass(1_000).await;

    assert!(world.claim().await.is_none(), "the one slot belongs to the second");
}

async fn a_claimed_admission_outlives_its_reservation(world: World) {
    let (_, _, handle, _) = contended(&world, ExecutionPolicy::default()).await;
    world.pass(5_000).await;
    world.backend.renew(&handle).await.unwrap();
    assert!(world.claim().await.is_none());
    world.pass(20_000).await;
    assert!(world.claim().await.is_none());
}

async fn a_retried_execution_takes_a_slot_again(world: World) {
    let (_, first, handle, second) = contended(&world, retrying()).await;
    world.backend.fail(&handle, FailureReason::new("later"), FailureClass::Transient).await.unwrap();
    let second_handle = world.claim().await.unwrap();
    for _ in 0..30 {
        world.pass(20_000).await;
        world.backend.renew(&second_handle).await.unwrap();
    }
    assert!(world.claim().await.is_none(), "its turn has come, but no slot");
    world.backend.complete(&second_handle, None).await.unwrap();
    assert_eq!(world.state(second).await, PublicState::Completed);
    is_claimed_next(&world, first).await;
}
