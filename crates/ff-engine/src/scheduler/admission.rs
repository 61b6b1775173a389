//! Whether budgets and quotas let an execution start.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::backend::quotas::CheckAdmissionResult;
use ff_core::ids::{ExecutionId, QuotaPolicyId};
use ff_core::rules::budgets::Breach;
use ff_core::rules::quotas::{AdmissionFacts, AdmissionLimits, DIMENSION_DEFAULT, admit as decide, free_slots};
use ff_core::{Result, TimestampMs};

use super::slots::{Admit, Because, Free};
use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Budget, Execution, Gate, QuotaPolicy, QuotaUsage, Record, WindowEntry};
use crate::store::Store;
use crate::timers::gates;
use crate::timers::witness::witness;
use crate::verbs::{list_of, read_one};

/// After so long a denied execution asks again although nobody has told that a slot is free.
pub(super) const CAP_RETRY_MS: u64 = 30_000;

/// Expired window entries that one look counts.
const EXPIRED_MAX: usize = 1_000;

/// Whether an execution may be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It may; these quotas count it until its ownership ends, or until the claim is given up.
    Yes {
        /// Those that would have to be withdrawn.
        quotas: Vec<QuotaPolicyId>,
    },
    /// It may not, and nothing counts it.
    No {
        /// The first policy that denies.
        gate: Gate,
        /// When to ask again, where that is known.
        retry_at: Option<TimestampMs>,
        /// For people.
        detail: String,
    },
}

/// Why a policy lets nobody in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    /// When to ask again, where that is known.
    pub(crate) retry_at: Option<TimestampMs>,
    /// For people.
    pub(crate) detail: String,
}

fn budget_denial(budget: &Budget) -> Option<Denial> {
    let Breach { dimension, current_usage, limit } = budget.closed_by()?;
    let detail = format!("budget {}: {current_usage} of {limit} {dimension} used", budget.id);
    Some(Denial { retry_at: budget.period.next_reset_at, detail })
}

fn quota_denial(quota: QuotaPolicyId, answer: CheckAdmissionResult, now: TimestampMs) -> Option<Denial> {
    match answer {
        CheckAdmissionResult::Admitted | CheckAdmissionResult::AlreadyAdmitted => None,
        CheckAdmissionResult::RateExceeded { retry_after_ms } => {
            Some(Denial { retry_at: Some(now.plus(retry_after_ms)), detail: format!("quota {quota}: window is full") })
        }
        CheckAdmissionResult::ConcurrencyExceeded => Some(Denial {
            retry_at: Some(now.plus(CAP_RETRY_MS)),
            detail: format!("quota {quota}: no concurrency slot is free"),
        }),
    }
}

/// Asks every budget, then every quota that is attached. Budgets are only read; quotas count the execution for its next ownership,
/// provisionally until `until`. A denial takes back what earlier quotas counted.
pub(crate) async fn admit<S: Store>(engine: &Engine<S>, execution: &Execution, until: TimestampMs) -> Result<Admitted> {
    if let Some((gate, denial)) = exhausted_budget(engine, execution).await? {
        return Ok(Admitted::No { gate, retry_at: denial.retry_at, detail: denial.detail });
    }
    let mut quotas = Vec::new();
    for quota in &execution.quota_policy_ids {
        match admit_by(engine, execution, *quota, until).await {
            Ok(None) => quotas.push(*quota),
            Ok(Some(Denial { retry_at, detail })) => {
                withdraw(engine, execution, &quotas).await?;
                return Ok(Admitted::No { gate: Gate::Quota(*quota), retry_at, detail });
            }
            Err(error) => {
                // The expiry of a provisional admission is the fallback when this fails, too.
                let _ = withdraw(engine, execution, &quotas).await;
                return Err(error);
            }
        }
    }
    Ok(Admitted::Yes { quotas })
}

/// The first attached budget that is used up. One that does not exist, or belongs to somebody else, limits nothing.
async fn exhausted_budget<S: Store>(engine: &Engine<S>, execution: &Execution) -> Result<Option<(Gate, Denial)>> {
    if execution.budget_ids.is_empty() {
        return Ok(None);
    }
    let keys: Vec<_> = execution.budget_ids.iter().map(|id| Key::budget(engine.counts().of_budget(*id), *id)).collect();
    for record in engine.store.read(&keys).await?.into_iter().flatten() {
        let Record::Budget(budget) = record else { continue };
        if budget.namespace == execution.namespace
            && let Some(denial) = budget_denial(&budget)
        {
            return Ok(Some((Gate::Budget(budget.id), denial)));
        }
    }
    Ok(None)
}

/// Asks one quota. One that does not exist, belongs to somebody else or bounds nothing admits without counting.
async fn admit_by<S: Store>(
    engine: &Engine<S>,
    execution: &Execution,
    quota: QuotaPolicyId,
    until: TimestampMs,
) -> Result<Option<Denial>> {
    let home = engine.counts().of_quota(quota);
    let policy: Option<QuotaPolicy> = read_one(&engine.store, Key::quota_policy(home, quota)).await?;
    let Some(policy) = policy.filter(|policy| policy.namespace == execution.namespace) else { return Ok(None) };
    let Some(limits) = policy.bounds() else { return Ok(None) };
    let op = Admit {
        home,
        quota,
        dimension: DIMENSION_DEFAULT.to_owned(),
        execution: execution.id,
        epoch: execution.epoch.next(),
        inherits: execution.is_lost(),
        limits,
        until,
        sample: engine.settings.entropy.uniform(u64::MAX),
    };
    let answer = engine.run(op).await?;
    Ok(quota_denial(quota, answer, engine.store.now().await?))
}

/// Takes back what [`admit`] counted for the execution as it was then: the claim did not happen.
pub(crate) async fn withdraw<S: Store>(
    engine: &Engine<S>,
    execution: &Execution,
    quotas: &[QuotaPolicyId],
) -> Result<()> {
    for quota in quotas {
        free(engine, *quota, execution.id, Because::Withdrawn(execution.epoch.next())).await?;
    }
    Ok(())
}

/// Takes an admission back and lets in who waits for its place; says whether it was there.
pub(crate) async fn free<S: Store>(
    engine: &Engine<S>,
    quota: QuotaPolicyId,
    execution: ExecutionId,
    because: Because,
) -> Result<bool> {
    let opening = gates::opening(engine, Gate::Quota(quota)).await?;
    let home = engine.counts().of_quota(quota);
    let free = Free { home, quota, execution, because, opening };
    let (changed, opened) = witness(engine, Key::admission(home, quota, execution), free).await?;
    if let Some(continuation) = opened {
        gates::run_at_once(engine, continuation).await;
    }
    Ok(changed)
}

/// Those of `gates` that let nobody in now.
pub(crate) async fn closed_gates<S: Store>(
    engine: &Engine<S>,
    gates: &BTreeSet<Gate>,
) -> Result<BTreeMap<Gate, Denial>> {
    let mut closed = BTreeMap::new();
    for gate in gates {
        if let Some(denial) = closed_gate(engine, *gate).await? {
            closed.insert(*gate, denial);
        }
    }
    Ok(closed)
}

/// Why a gate lets nobody in now; `None` when it is open.
pub(crate) async fn closed_gate<S: Store>(engine: &Engine<S>, gate: Gate) -> Result<Option<Denial>> {
    match gate {
        Gate::Budget(id) => {
            let key = Key::budget(engine.counts().of_budget(id), id);
            let budget: Option<Budget> = read_one(&engine.store, key).await?;
            Ok(budget.as_ref().and_then(budget_denial))
        }
        Gate::Quota(id) => {
            let Some((limits, facts)) = quota_facts(engine, id).await? else { return Ok(None) };
            let now = engine.store.now().await?;
            Ok(quota_denial(id, decide(&limits, &facts, now, 0), now))
        }
    }
}

/// How many more executions a quota would admit now; `None` when nothing bounds them.
pub(crate) async fn free_slots_of<S: Store>(engine: &Engine<S>, quota: QuotaPolicyId) -> Result<Option<u64>> {
    let facts = quota_facts(engine, quota).await?;
    Ok(facts.and_then(|(limits, facts)| free_slots(&limits, &facts)))
}

/// What a quota asks and where it stands; `None` when it bounds nothing.
pub(crate) async fn quota_facts<S: Store>(
    engine: &Engine<S>,
    quota: QuotaPolicyId,
) -> Result<Option<(AdmissionLimits, AdmissionFacts)>> {
    let home = engine.counts().of_quota(quota);
    let keys = [Key::quota_policy(home, quota), Key::quota_usage(home, quota)];
    let mut found = engine.store.read(&keys).await?.into_iter().flatten();
    let Some(limits) = found.next().and_then(|record| QuotaPolicy::try_from(record).ok()?.bounds()) else {
        return Ok(None);
    };
    let Some(usage) = found.next().and_then(|record| QuotaUsage::try_from(record).ok()) else {
        return Ok(Some((limits, AdmissionFacts::default())));
    };
    let mut facts = AdmissionFacts { holders: usage.holders, ..AdmissionFacts::default() };
    let kept = usage.entries_of(DIMENSION_DEFAULT);
    if limits.rate_limit > 0 && kept > 0 {
        let window = || Index::WindowOf(home, quota, DIMENSION_DEFAULT.to_owned());
        let floor = Position::end_of(limits.window_floor(engine.store.now().await?).0);
        let gone: Vec<WindowEntry> =
            list_of(&engine.store, window(), Bounds::first(EXPIRED_MAX).until(floor.clone())).await?;
        let oldest: Vec<WindowEntry> = list_of(&engine.store, window(), Bounds::first(1).after(Some(floor))).await?;
        facts.in_window = kept.saturating_sub(gone.len() as u64);
        facts.oldest_at = oldest.first().map(|entry| entry.at);
    }
    Ok(Some((limits, facts)))
}
