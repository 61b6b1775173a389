//! How fast executions start, and how many run at once.

mod admissions;
mod claims;
mod definitions;
mod slots;

use ff_core::backend::quotas::{
    CheckAdmissionArgs, CheckAdmissionResult, CreateQuotaPolicyArgs, CreateQuotaPolicyResult,
};
use ff_core::ids::{ExecutionId, QuotaPolicyId};
use ff_core::policy::ExecutionPolicy;

use crate::Case;
use crate::world::World;

pub(crate) fn cases() -> Vec<Case> {
    [admissions::cases(), claims::cases(), definitions::cases(), slots::cases()].into_iter().flatten().collect()
}

/// A policy attached by id, without any bound.
fn unbounded(world: &World) -> CreateQuotaPolicyArgs {
    CreateQuotaPolicyArgs {
        quota_policy_id: QuotaPolicyId::from_uuid(world.uuid()),
        namespace: world.namespace(),
        scope_type: "policy".into(),
        scope_id: String::new(),
        window_seconds: 0,
        max_requests_per_window: 0,
        max_concurrent: 0,
        jitter_ms: 0,
    }
}

async fn create(world: &World, args: CreateQuotaPolicyArgs) -> QuotaPolicyId {
    match world.backend.create_quota_policy(args).await.unwrap() {
        CreateQuotaPolicyResult::Created { quota_policy_id } => quota_policy_id,
        other @ CreateQuotaPolicyResult::AlreadySatisfied { .. } => panic!("expected a new policy, got {other:?}"),
    }
}

/// A policy that lets so many run at once.
async fn at_once(world: &World, max_concurrent: u64) -> QuotaPolicyId {
    create(world, CreateQuotaPolicyArgs { max_concurrent, ..unbounded(world) }).await
}

/// A policy that lets so many start per minute.
async fn per_minute(world: &World, max_requests_per_window: u64) -> QuotaPolicyId {
    create(world, CreateQuotaPolicyArgs { window_seconds: 60, max_requests_per_window, ..unbounded(world) }).await
}

fn attached_to(quotas: &[QuotaPolicyId]) -> ExecutionPolicy {
    ExecutionPolicy { quota_policy_ids: quotas.to_vec(), ..ExecutionPolicy::default() }
}

/// What an execution asks that brings no limit.
fn asking(execution_id: ExecutionId) -> CheckAdmissionArgs {
    CheckAdmissionArgs { execution_id, window_seconds: 60, rate_limit: 0, concurrency_cap: 0, jitter_ms: None }
}

async fn check(world: &World, quota: QuotaPolicyId, args: CheckAdmissionArgs) -> CheckAdmissionResult {
    world.backend.check_admission(quota, "", args).await.unwrap()
}
