//! Budgets and quotas.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::TimestampMs;
use ff_core::backend::budgets::{Amounts, ReportUsageResult};
use ff_core::backend::quotas::CheckAdmissionResult;
use ff_core::ids::{BudgetId, ExecutionId, QuotaPolicyId};
use ff_core::rules::budgets::USAGE_DEDUP_MS;
use ff_engine::key::Key;
use ff_engine::records::{Admission, Budget, Ledger, QuotaPolicy, QuotaUsage, Settlement, WindowEntry};

use super::{Findings, Mirror, Pending, Step};
use crate::call::{Answer, Presents};
use crate::invariants::Invariant;

/// What earlier commits applied.
#[derive(Default)]
pub(super) struct Memo {
    keys: BTreeMap<(BudgetId, String), TimestampMs>,
}

const REPORTS: [&str; 3] = ["report_usage", "report_usage_admin", "record_spend"];

fn of(amounts: &Amounts, dimension: &str) -> u64 {
    amounts.get(dimension).copied().unwrap_or(0)
}

/// Amounts without zeros, so that absent and zero are alike.
fn plain(amounts: &Amounts) -> Amounts {
    amounts.iter().filter(|(_, amount)| **amount > 0).map(|(name, amount)| (name.clone(), *amount)).collect()
}

pub(super) fn commit(step: &Step<'_>, memo: &mut Memo, findings: &mut Findings) {
    for (before, after) in step.changed::<Budget>() {
        if let (Some(before), Some(after)) = (before, after) {
            usage(step, before, after, memo, findings);
        }
    }
    quotas(step, findings);
    settlements(step, findings);
}

/// A settlement that is done leaves no slot to the ownership it settles.
fn settlements(step: &Step<'_>, findings: &mut Findings) {
    for (before, after) in step.changed::<Settlement>() {
        let (Some(settled), None) = (before, after) else { continue };
        for quota in &settled.quotas {
            let key = Key::admission(step.mirror.counts().of_quota(*quota), *quota, settled.execution);
            let left = step.mirror.get::<Admission>(&key).filter(|left| left.epoch == settled.epoch && left.holds_slot);
            findings.check(left.is_none(), Invariant::AdmissionsAreBounded, || {
                format!("quota {quota}: {} keeps the slot of epoch {}", settled.execution, settled.epoch)
            });
        }
    }
}

fn usage(step: &Step<'_>, before: &Budget, after: &Budget, memo: &mut Memo, findings: &mut Findings) {
    let (old, new) = (plain(&before.period.usage), plain(&after.period.usage));
    let reset = after.period.generation != before.period.generation;
    for (dimension, amount) in &new {
        let limit = of(&after.hard_limits, dimension);
        let over = limit > 0 && *amount > limit && *amount > of(&old, dimension);
        findings.check(!over, Invariant::HardLimitHolds, || {
            format!("budget {}: {dimension} {amount} of {limit}", after.id)
        });
    }
    if reset {
        findings.check(new.is_empty(), Invariant::UsageAddsUp, || format!("budget {}: reset to {new:?}", after.id));
        return;
    }
    if old == new {
        return;
    }
    match step.op() {
        op if REPORTS.contains(&op) => reported(step, &old, &new, after, memo, findings),
        "release_budget" | "run_due" | "trim_retention" => released(step, &old, &new, after, findings),
        op => findings
            .check(false, Invariant::UsageAddsUp, || format!("budget {}: {op} changed {old:?} to {new:?}", after.id)),
    }
}

fn reported(step: &Step<'_>, old: &Amounts, new: &Amounts, after: &Budget, memo: &mut Memo, findings: &mut Findings) {
    let Some(Presents::Usage { deltas, key, budget }) = step.call.map(|pending| &pending.call.presents) else {
        return;
    };
    let mut wanted = old.clone();
    for (dimension, delta) in deltas {
        *wanted.entry(dimension.clone()).or_default() += delta;
    }
    findings.check(plain(&wanted) == *new, Invariant::UsageAddsUp, || {
        format!("budget {}: {old:?} plus {deltas:?} became {new:?}", after.id)
    });
    if let Some(key) = key.clone().filter(|key| !key.is_empty()) {
        let until = memo.keys.insert((*budget, key.clone()), step.now.plus(USAGE_DEDUP_MS));
        findings.check(until.is_none_or(|until| until <= step.now), Invariant::UsageAppliedOnce, || {
            format!("budget {budget}: key {key:?} was applied again")
        });
    }
}

fn released(step: &Step<'_>, old: &Amounts, new: &Amounts, after: &Budget, findings: &mut Findings) {
    // Only ledgers of the running period that this commit deletes or voids are given back.
    let mut wanted = old.clone();
    for (before, _) in step.changed::<Ledger>().filter(|(_, after)| after.is_none()) {
        let Some(ledger) = before.filter(|l| l.budget == after.id && l.generation == after.period.generation) else {
            continue;
        };
        for (dimension, spent) in &ledger.spent {
            let left = of(&wanted, dimension).saturating_sub(*spent);
            wanted.insert(dimension.clone(), left);
        }
    }
    findings.check(plain(&wanted) == *new, Invariant::ReleaseIsIdempotent, || {
        format!("budget {}: {} made {old:?} to {new:?}, not {wanted:?}", after.id, step.op())
    });
}

fn quotas(step: &Step<'_>, findings: &mut Findings) {
    let mut touched: BTreeMap<QuotaPolicyId, bool> = BTreeMap::new();
    for (before, after) in step.changed::<Admission>() {
        if let Some(admission) = after.or(before) {
            *touched.entry(admission.quota).or_default() |= before.is_none();
        }
    }
    for (_, after) in step.changed::<QuotaUsage>() {
        if let Some(usage) = after {
            touched.entry(usage.id).or_default();
        }
    }
    for (quota, admitted) in touched {
        counters(step.mirror, quota, findings);
        if admitted {
            bounds(step.mirror, quota, step.now, findings);
        }
    }
}

/// Sorts before every execution.
const FIRST: ExecutionId = ExecutionId::new(0, uuid::Uuid::nil());

fn holders(mirror: &Mirror, quota: QuotaPolicyId) -> u64 {
    let admissions = mirror.from::<Admission>(Key::admission(mirror.counts().of_quota(quota), quota, FIRST));
    let own = admissions.take_while(|admission| admission.quota == quota);
    own.filter(|admission| admission.holds_slot).count() as u64
}

fn counters(mirror: &Mirror, quota: QuotaPolicyId, findings: &mut Findings) {
    let home = mirror.counts().of_quota(quota);
    let counted = mirror.get::<QuotaUsage>(&Key::quota_usage(home, quota)).map_or(0, |usage| usage.holders);
    let holders = holders(mirror, quota);
    findings.check(counted == holders, Invariant::AdmissionsAreBounded, || {
        format!("quota {quota}: {holders} holders, {counted} counted")
    });
}

/// The bounds of a quota's definition hold at a moment, the one in which somebody was admitted.
fn bounds(mirror: &Mirror, quota: QuotaPolicyId, now: TimestampMs, findings: &mut Findings) {
    let home = mirror.counts().of_quota(quota);
    let Some(policy) = mirror.get::<QuotaPolicy>(&Key::quota_policy(home, quota)) else { return };
    let holders = holders(mirror, quota);
    let cap = policy.max_concurrent;
    findings.check(cap == 0 || holders <= cap, Invariant::AdmissionsAreBounded, || {
        format!("quota {quota}: {holders} holders, at most {cap}")
    });
    let limit = policy.max_requests_per_window;
    let window_ms = policy.window_seconds * 1000;
    let mut windows: BTreeMap<&str, u64> = BTreeMap::new();
    for entry in window_entries(mirror, quota) {
        if entry.at <= now && entry.at.plus(window_ms) > now {
            *windows.entry(&entry.dimension).or_default() += 1;
        }
    }
    for (dimension, count) in windows {
        findings.check(limit == 0 || count <= limit, Invariant::AdmissionsAreBounded, || {
            format!("quota {quota}: {count} admissions in {dimension:?}, at most {limit}")
        });
    }
}

fn window_entries(mirror: &Mirror, quota: QuotaPolicyId) -> impl Iterator<Item = &WindowEntry> {
    let home = mirror.counts().of_quota(quota);
    let first = Key::window_entry(home, quota, String::new(), TimestampMs(i64::MIN), FIRST);
    mirror.from::<WindowEntry>(first).take_while(move |entry| entry.quota == quota)
}

pub(super) fn finish(pending: &Pending, answer: Answer<'_>, findings: &mut Findings) {
    if let Some(CheckAdmissionResult::RateExceeded { .. } | CheckAdmissionResult::ConcurrencyExceeded) = answer.is() {
        let traces = pending.admissions;
        findings.check(traces == 0, Invariant::DenialLeavesNoTrace, || {
            format!("a denial of {:?} recorded {traces} entries", pending.call.subject)
        });
    }
    if let Some(ReportUsageResult::HardBreach { dimension, .. }) = answer.is() {
        findings.check(!pending.added_usage, Invariant::HardLimitHolds, || {
            format!("{} breached {dimension} and still added", pending.call.op)
        });
    }
}

/// What budgets and quotas hold at any moment.
pub(super) fn scan(mirror: &Mirror, findings: &mut Findings) {
    ledgers(mirror, findings);
    for budget in mirror.all::<Budget>() {
        for (dimension, limit) in budget.hard_limits.iter().filter(|(_, limit)| **limit > 0) {
            let amount = of(&budget.period.usage, dimension);
            findings.check(amount <= *limit, Invariant::HardLimitHolds, || {
                format!("budget {}: {dimension} {amount} of {limit}", budget.id)
            });
        }
    }
    for policy in mirror.all::<QuotaPolicy>() {
        counters(mirror, policy.id, findings);
        let admitted: BTreeSet<TimestampMs> = window_entries(mirror, policy.id).map(|entry| entry.at).collect();
        for at in admitted {
            bounds(mirror, policy.id, at, findings);
        }
    }
}

/// Ledgers never exceed the usage they are part of.
fn ledgers(mirror: &Mirror, findings: &mut Findings) {
    let mut sums: BTreeMap<(BudgetId, &str), u64> = BTreeMap::new();
    for ledger in mirror.all::<Ledger>() {
        let budget = mirror.get::<Budget>(&Key::budget(ledger.home, ledger.budget));
        if budget.is_some_and(|budget| budget.period.generation == ledger.generation) {
            for (dimension, spent) in &ledger.spent {
                *sums.entry((ledger.budget, dimension)).or_default() += spent;
            }
        }
    }
    for ((id, dimension), spent) in sums {
        let usage = mirror
            .get::<Budget>(&Key::budget(mirror.counts().of_budget(id), id))
            .map_or(0, |budget| of(&budget.period.usage, dimension));
        findings.check(spent <= usage, Invariant::UsageAddsUp, || {
            format!("budget {id}: ledgers of {dimension} are {spent}, usage is {usage}")
        });
    }
}
