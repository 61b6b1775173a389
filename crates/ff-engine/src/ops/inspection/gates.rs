//! Whether a budget or a quota lets anything through, as a reason that people understand.

use ff_core::backend::inspection::Reason;
use ff_core::backend::quotas::QuotaPolicyLimits;
use ff_core::ids::{BudgetId, QuotaPolicyId};
use ff_core::rules::budgets::{BudgetLimits, exhausted};
use ff_core::rules::quotas::{AdmissionLimits, DIMENSION_DEFAULT};
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Admission, Budget, Execution, Gate, QuotaPolicy, QuotaUsage, WindowEntry};
use crate::store::Store;
use crate::verbs::{list_of, read_one};

/// Entries of a rate window that are counted one by one; beyond that the stored counter is believed.
const WINDOW_COUNTED_MAX: u64 = 1000;

/// The budget, if it has nothing left.
pub(super) async fn budget<S: Store>(engine: &Engine<S>, id: BudgetId) -> Result<Option<Reason>> {
    let key = Key::budget(engine.counts().of_budget(id), id);
    let Some(budget) = read_one::<Budget, _>(&engine.store, key).await? else { return Ok(None) };
    let limits = BudgetLimits { hard: budget.hard_limits, soft: budget.soft_limits };
    Ok(exhausted(&limits, &budget.period.usage).map(|breach| Reason::BudgetExhausted {
        budget_id: id,
        dimension: breach.dimension,
        usage: breach.current_usage,
        limit: breach.limit,
        next_reset_at: budget.period.next_reset_at,
    }))
}

/// The quota, if it would not admit the execution.
pub(super) async fn quota<S: Store>(
    engine: &Engine<S>,
    id: QuotaPolicyId,
    execution: &Execution,
    now: TimestampMs,
) -> Result<Option<Reason>> {
    let home = engine.counts().of_quota(id);
    let Some(policy) = read_one::<QuotaPolicy, _>(&engine.store, Key::quota_policy(home, id)).await? else {
        return Ok(None);
    };
    let Some(limits) = AdmissionLimits::from_definition(&definition(&policy)) else { return Ok(None) };
    let admitted: Option<Admission> = read_one(&engine.store, Key::admission(home, id, execution.id)).await?;
    if admitted.is_some_and(|admission| admission.epoch == execution.epoch.next()) {
        return Ok(None);
    }
    let usage: Option<QuotaUsage> = read_one(&engine.store, Key::quota_usage(home, id)).await?;
    let usage = usage.unwrap_or_else(|| QuotaUsage::none(home, id));
    if limits.rate_limit > 0
        && let Some(oldest) = full_window(engine, &limits, &usage, now).await?
    {
        let denied_until = execution.wake_at.filter(|_| execution.blocked_by == Some(Gate::Quota(id)));
        let frees_at = denied_until.unwrap_or_else(|| oldest.plus(limits.window_ms));
        return Ok(Some(Reason::QuotaRate { quota_policy_id: id, frees_at }));
    }
    let cap = limits.concurrency_cap;
    let is_full = cap > 0 && usage.holders >= cap;
    Ok(is_full.then_some(Reason::QuotaConcurrency { quota_policy_id: id, holders: usage.holders, cap }))
}

/// The oldest entry of a full window.
async fn full_window<S: Store>(
    engine: &Engine<S>,
    limits: &AdmissionLimits,
    usage: &QuotaUsage,
    now: TimestampMs,
) -> Result<Option<TimestampMs>> {
    let counted = usize::try_from(limits.rate_limit.min(WINDOW_COUNTED_MAX)).unwrap_or(usize::MAX);
    let index = Index::WindowOf(usage.home, usage.id, DIMENSION_DEFAULT.to_owned());
    let bounds = Bounds::first(counted).after(Some(Position::end_of(limits.window_floor(now).0)));
    let entries: Vec<WindowEntry> = list_of(&engine.store, index, bounds).await?;
    let in_window = if limits.rate_limit <= WINDOW_COUNTED_MAX {
        entries.len() as u64
    } else {
        usage.windows.get(DIMENSION_DEFAULT).copied().unwrap_or(0)
    };
    Ok(entries.first().map(|entry| entry.at).filter(|_| in_window >= limits.rate_limit))
}

/// A stored quota as the rules read it.
pub(crate) fn definition(policy: &QuotaPolicy) -> QuotaPolicyLimits {
    QuotaPolicyLimits {
        max_requests_per_window: policy.max_requests_per_window,
        requests_per_window_seconds: policy.window_seconds,
        active_concurrency_cap: policy.max_concurrent,
        jitter_ms: policy.jitter_ms,
    }
}
