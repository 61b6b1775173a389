//! Whether a budget or a quota lets an execution through, as a reason that people understand.

use ff_core::backend::inspection::Reason;
use ff_core::backend::quotas::CheckAdmissionResult;
use ff_core::ids::{BudgetId, QuotaPolicyId};
use ff_core::rules::quotas::admit;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::records::{Admission, Budget, Execution, Gate, QuotaPolicy};
use crate::scheduler::admission::quota_facts;
use crate::store::Store;
use crate::verbs::read_one;

/// The budget, if it has nothing left. One that belongs to somebody else limits nothing.
pub(super) async fn budget<S: Store>(
    engine: &Engine<S>,
    id: BudgetId,
    execution: &Execution,
) -> Result<Option<Reason>> {
    let key = Key::budget(engine.counts().of_budget(id), id);
    let budget: Option<Budget> = read_one(&engine.store, key).await?;
    let Some(budget) = budget.filter(|budget| budget.namespace == execution.namespace) else { return Ok(None) };
    Ok(budget.closed_by().map(|breach| Reason::BudgetExhausted {
        budget_id: id,
        dimension: breach.dimension,
        usage: breach.current_usage,
        limit: breach.limit,
        next_reset_at: budget.period.next_reset_at,
    }))
}

/// The quota, if it would not admit the execution. One that belongs to somebody else limits nothing.
pub(super) async fn quota<S: Store>(
    engine: &Engine<S>,
    id: QuotaPolicyId,
    execution: &Execution,
    now: TimestampMs,
) -> Result<Option<Reason>> {
    let home = engine.counts().of_quota(id);
    let policy: Option<QuotaPolicy> = read_one(&engine.store, Key::quota_policy(home, id)).await?;
    if policy.is_none_or(|policy| policy.namespace != execution.namespace) {
        return Ok(None);
    }
    let admitted: Option<Admission> = read_one(&engine.store, Key::admission(home, id, execution.id)).await?;
    if admitted.is_some_and(|admission| admission.epoch == execution.epoch.next()) {
        return Ok(None);
    }
    let Some((limits, facts)) = quota_facts(engine, id).await? else { return Ok(None) };
    Ok(match admit(&limits, &facts, now, 0) {
        CheckAdmissionResult::RateExceeded { retry_after_ms } => {
            let denied_until = execution.wake_at.filter(|_| execution.blocked_by == Some(Gate::Quota(id)));
            let frees_at = denied_until.unwrap_or_else(|| now.plus(retry_after_ms));
            Some(Reason::QuotaRate { quota_policy_id: id, frees_at })
        }
        CheckAdmissionResult::ConcurrencyExceeded => {
            Some(Reason::QuotaConcurrency { quota_policy_id: id, holders: facts.holders, cap: limits.concurrency_cap })
        }
        CheckAdmissionResult::Admitted | CheckAdmissionResult::AlreadyAdmitted => None,
    })
}
