//! Makes budgets and quotas, and reports, releases, resets and admits beside the workers.

use std::collections::BTreeMap;

use ff_core::backend::budgets::{CreateBudgetArgs, RecordSpendArgs, ReleaseBudgetArgs, ReportUsageAdminArgs};
use ff_core::backend::quotas::{CheckAdmissionArgs, CreateQuotaPolicyArgs, ReleaseAdmissionArgs};
use ff_core::ids::{BudgetId, ExecutionId, QuotaPolicyId};
use ff_engine::key::Key;
use ff_engine::records::{Ledger, QuotaPolicy};

use super::actions;
use crate::call::{Call, Presents};
use crate::memory::{LANES, NAMESPACES, name, remember};
use crate::world::{COUNTS, World};

actions![
    3 create_budget, 3 create_quota, 7 report, 8 spend, 5 release, 3 reset, 5 admit, 4 release_admission, 2 read_status,
];

/// More of them would only dilute what meets.
const BUDGETS_MAX: usize = 4;
const QUOTAS_MAX: usize = 3;

pub(crate) async fn create_budget(world: &World) {
    if world.memory().budgets.len() >= BUDGETS_MAX {
        return;
    }
    let rng = world.rng();
    let budget_id = BudgetId::from_uuid(rng.uuid());
    let namespace = rng.one_of(NAMESPACES);
    let (scope_type, scope_id) = match rng.below(4) {
        0 => ("lane", LANES[0]),
        1 => ("tag", "app.team=red"),
        _ => ("policy", ""),
    };
    let action = rng.one_of(["block", "block", "block", "cancel_pending", "suspend", "cancel_all"]);
    let args = CreateBudgetArgs {
        budget_id,
        namespace: name(namespace),
        scope_type: scope_type.to_owned(),
        scope_id: scope_id.to_owned(),
        on_hard_limit: action.to_owned(),
        on_soft_limit: "warn".to_owned(),
        reset_interval_ms: rng.one_of([0, 30_000]),
        dimensions: vec!["input_tokens".to_owned(), "calls".to_owned()],
        hard_limits: vec![rng.between(10, 40), 0],
        soft_limits: vec![8, 3],
    };
    let engine = world.engine();
    let detail = format!("{budget_id} {namespace} {scope_type} {scope_id} {action} hard={:?}", args.hard_limits);
    if world.call(Call::new("create_budget", detail), engine.create_budget(args)).await.is_done() {
        remember(&mut world.memory().budgets, (budget_id, name(namespace)));
    }
}

pub(crate) async fn create_quota(world: &World) {
    if world.memory().quotas.len() >= QUOTAS_MAX {
        return;
    }
    let rng = world.rng();
    let quota_policy_id = QuotaPolicyId::from_uuid(rng.uuid());
    let namespace = rng.one_of(NAMESPACES);
    let args = CreateQuotaPolicyArgs {
        quota_policy_id,
        namespace: name(namespace),
        scope_type: "policy".to_owned(),
        scope_id: String::new(),
        window_seconds: 10,
        max_requests_per_window: rng.one_of([0, 3]),
        max_concurrent: rng.one_of([1, 2, 0]),
        jitter_ms: rng.one_of([0, 500]),
    };
    let engine = world.engine();
    let detail =
        format!("{quota_policy_id} {namespace} rate {} cap {}", args.max_requests_per_window, args.max_concurrent);
    if world.call(Call::new("create_quota_policy", detail), engine.create_quota_policy(args)).await.is_done() {
        remember(&mut world.memory().quotas, (quota_policy_id, name(namespace)));
    }
}

fn some_budget(world: &World) -> Option<BudgetId> {
    world.rng().pick(&world.memory().budgets).map(|(id, _)| *id)
}

fn deltas(world: &World) -> BTreeMap<String, u64> {
    let rng = world.rng();
    let mut deltas = BTreeMap::from([("input_tokens".to_owned(), rng.between(0, 12))]);
    if rng.chance(50) {
        deltas.insert("calls".to_owned(), 1);
    }
    deltas
}

async fn report(world: &World) {
    let Some(budget) = some_budget(world) else { return };
    let deltas = deltas(world);
    let key = world.rng().chance(40).then(|| world.rng().one_of(["r1", "r2", "r3"]).to_owned());
    let args = ReportUsageAdminArgs {
        dimensions: deltas.keys().cloned().collect(),
        deltas: deltas.values().copied().collect(),
        dedup_key: key.clone(),
    };
    let engine = world.engine();
    let call = Call::new("report_usage_admin", format!("{budget} {deltas:?} key={key:?}"));
    let call = call.with(Presents::Usage { budget, deltas, key });
    world.call(call, engine.report_usage_admin(budget, args)).await;
}

async fn spend(world: &World) {
    let execution = world.rng().pick_recent(&world.memory().executions).copied();
    let (Some(budget_id), Some(execution_id)) = (some_budget(world), execution) else { return };
    let deltas = deltas(world);
    let key = world.rng().chance(50).then(|| world.rng().one_of(["s1", "s2", "s3"]).to_owned());
    let args = RecordSpendArgs {
        budget_id,
        execution_id,
        deltas: deltas.clone(),
        idempotency_key: key.clone().unwrap_or_default(),
    };
    let engine = world.engine();
    let call = Call::new("record_spend", format!("{budget_id} {execution_id} {deltas:?} key={key:?}"));
    let call = call.with(Presents::Usage { budget: budget_id, deltas, key });
    world.call(call, engine.record_spend(args)).await;
}

/// Somebody who has spent something, in whatever period.
fn some_spender(world: &World) -> Option<(BudgetId, ExecutionId)> {
    let spent: Vec<_> = world.seen().mirror().all::<Ledger>().map(|ledger| (ledger.budget, ledger.execution)).collect();
    world.rng().pick(&spent).copied()
}

async fn release(world: &World) {
    let spender = some_spender(world).filter(|_| world.rng().chance(80));
    let anybody = || some_budget(world).zip(world.rng().pick_recent(&world.memory().executions).copied());
    let Some((budget_id, execution_id)) = spender.or_else(anybody) else { return };
    let engine = world.engine();
    let call = Call::new("release_budget", format!("{budget_id} {execution_id}"));
    // Releasing twice changes nothing.
    for _ in 0..2 {
        world.call(call.clone(), engine.release_budget(ReleaseBudgetArgs { budget_id, execution_id })).await;
    }
}

async fn reset(world: &World) {
    let Some(budget) = some_budget(world) else { return };
    let engine = world.engine();
    world.call(Call::new("reset_budget", budget.to_string()), engine.reset_budget(budget)).await;
}

/// An admission asked for from outside, by the bounds of the definition.
async fn admit(world: &World) {
    let (quota, execution) = {
        let rng = world.rng();
        let memory = world.memory();
        (rng.pick(&memory.quotas).map(|(id, _)| *id), rng.pick_recent(&memory.executions).copied())
    };
    let (Some(quota), Some(execution_id)) = (quota, execution) else { return };
    let policy = world.seen().mirror().get::<QuotaPolicy>(&Key::quota_policy(COUNTS.of_quota(quota), quota)).cloned();
    let Some(policy) = policy else { return };
    let args = CheckAdmissionArgs {
        execution_id,
        window_seconds: policy.window_seconds,
        rate_limit: policy.max_requests_per_window,
        concurrency_cap: policy.max_concurrent,
        jitter_ms: None,
    };
    let engine = world.engine();
    let call = Call::new("check_admission", format!("{quota} {execution_id}")).of(execution_id);
    world.call(call, engine.check_admission(quota, "", args)).await;
}

async fn release_admission(world: &World) {
    let (quota, execution) = {
        let rng = world.rng();
        let memory = world.memory();
        (rng.pick(&memory.quotas).map(|(id, _)| *id), rng.pick_recent(&memory.executions).copied())
    };
    let (Some(quota_policy_id), Some(execution_id)) = (quota, execution) else { return };
    let engine = world.engine();
    let call = Call::new("release_admission", format!("{quota_policy_id} {execution_id}"));
    for _ in 0..2 {
        let args = ReleaseAdmissionArgs { quota_policy_id, execution_id };
        world.call(call.clone(), engine.release_admission(args)).await;
    }
}

async fn read_status(world: &World) {
    let Some(budget) = some_budget(world) else { return };
    let engine = world.engine();
    world.call(Call::new("get_budget_status", budget.to_string()), engine.get_budget_status(budget)).await;
}
