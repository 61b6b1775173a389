//! Who owns what: leases, epochs, fences, grants.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::TimestampMs;
use ff_core::backend::claims::GrantKind;
use ff_core::ids::{AttemptIndex, ExecutionId, LeaseEpoch, LeaseFence, LeaseId};
use ff_core::policy::DEFAULT_MAX_RECLAIM_COUNT;
use ff_core::state::{AttemptState, EligibilityState, OwnershipState};
use ff_engine::index::{DueKind, Entry, Index};
use ff_engine::key::{Key, Name};
use ff_engine::records::{Definition, Execution, Grant, Record, Waitpoint};
use uuid::Uuid;

use super::mirror::Kind;
use super::{Change, Findings, Mirror, Pending, Step};
use crate::call::{Answer, Presents};
use crate::invariants::Invariant;

/// What earlier commits granted.
#[derive(Default)]
pub(super) struct Memo {
    epochs: BTreeMap<ExecutionId, LeaseEpoch>,
    leases: BTreeSet<LeaseId>,
    consumed: BTreeSet<Uuid>,
}

/// How a fence stands to an execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Holds,
    /// The fence is the stored one, but the lease ran out or was revoked.
    Lost,
    /// The fence is not the stored one, or nobody owns the execution.
    Foreign,
}

fn standing(execution: Option<&Execution>, fence: LeaseFence, index: AttemptIndex, now: TimestampMs) -> Standing {
    let Some(execution) = execution else { return Standing::Foreign };
    if execution.fence() != Some(fence) || execution.attempt_index != index {
        return Standing::Foreign;
    }
    let runs = execution.lease.as_ref().is_some_and(|lease| lease.expires_at > now);
    match execution.state().ownership_state {
        OwnershipState::Leased if runs => Standing::Holds,
        _ => Standing::Lost,
    }
}

/// Whether an execution changed hands: who holds it now did not hold it before.
pub(super) fn granted<'a>(before: Option<&Execution>, after: Option<&'a Execution>) -> Option<&'a Execution> {
    let after = after.filter(|after| after.is_leased())?;
    let lease = |execution: &Execution| execution.lease.as_ref().map(|lease| lease.id);
    let same =
        before.is_some_and(|before| before.is_leased() && lease(before) == lease(after) && before.epoch == after.epoch);
    (!same).then_some(after)
}

/// Operations that give an execution to somebody without looking at capabilities or admission.
const OPERATOR: &str = "issue_grant_and_claim";

pub(super) fn commit(step: &Step<'_>, memo: &mut Memo, findings: &mut Findings) {
    fence(step, findings);
    for change in step.changes {
        if let Some(record @ Record::Execution(execution)) = &change.after {
            leased_is_indexed(execution, &record.entries(), findings);
        }
    }
    for (before, after) in step.changed::<Execution>() {
        if let (Some(before), Some(after)) = (before, after) {
            findings.check(after.epoch >= before.epoch, Invariant::EpochRises, || {
                format!("{}: epoch {} after {}", after.id, after.epoch, before.epoch)
            });
            let revived = before.is_terminal() && !after.is_terminal();
            let replay = step.op() == "replay_execution" && after.replay_count == before.replay_count + 1;
            findings.check(!revived || replay, Invariant::TerminalStaysUnowned, || {
                format!("{}: {} took it out of terminal", after.id, step.op())
            });
        }
        if let (Some(before), None) = (before, after) {
            // A purged id may be used again, by another execution.
            memo.epochs.remove(&before.id);
        }
        if let Some(after) = granted(before, after) {
            grant(step, before, after, memo, findings);
        }
    }
    for (before, after) in step.changed::<Grant>() {
        if let (Some(after), true) = (after, before.map(|grant| grant.id) != after.map(|grant| grant.id)) {
            issued(step, before, after, findings);
        }
    }
}

/// A call that shows a fence changes something only if the fence holds, or to mark the lease expired.
fn fence(step: &Step<'_>, findings: &mut Findings) {
    let Some((pending, id)) = step.call.and_then(|pending| Some((pending, pending.call.subject?))) else { return };
    let Some((fence, index)) = pending.call.fence else { return };
    if !step.changes.iter().any(|change| concerns(change, id)) || pending.call.op == "report_usage" {
        return;
    }
    let before = step.before::<Execution>(&Key::execution(id));
    let standing = standing(before, fence, index, step.now);
    // What nobody owns can be cancelled without a fence.
    let unowned = pending.call.op == "cancel_execution" && before.is_some_and(|before| !before.is_active());
    if standing == Standing::Holds || unowned || marks_expiry(before, step, id) || is_readmitted(before, step, id) {
        return;
    }
    let invariant = match standing {
        Standing::Lost => Invariant::LostOwnerFails,
        _ => Invariant::ForeignFenceChangesNothing,
    };
    findings.check(false, invariant, || {
        let kinds: Vec<&str> = step.changes.iter().filter_map(|c| c.after.as_ref().map(Record::kind)).collect();
        format!("{} with fence {fence:?} changed {kinds:?} of {id}", pending.call.op)
    });
}

/// Whether a change is one of the execution itself; settling what it owed is not.
fn concerns(change: &Change, id: ExecutionId) -> bool {
    match &change.key.name {
        Name::Execution(owner) | Name::Progress(owner) | Name::Outcome(owner) | Name::SignalTally(owner) => {
            *owner == id
        }
        Name::Attempt(owner, _) | Name::StreamHead(owner, _) | Name::Summary(owner, _) => *owner == id,
        Name::Frame(owner, _, _) | Name::Suspension(owner, _) => *owner == id,
        Name::Step(owner, _, _) | Name::StepHead(owner) => *owner == id,
        Name::Waitpoint(_) => {
            let owner = change.after.as_ref().or(change.before.as_ref()).and_then(Waitpoint::of);
            owner.is_some_and(|waitpoint| waitpoint.execution == id)
        }
        _ => false,
    }
}

/// A call that frees a slot may let in whoever waits for it, even its own execution once that has been handed back.
fn is_readmitted(before: Option<&Execution>, step: &Step<'_>, id: ExecutionId) -> bool {
    let waits = before.is_some_and(|before| {
        matches!(before.state().eligibility_state, EligibilityState::BlockedByQuota | EligibilityState::BlockedByBudget)
    });
    waits && step.mirror.execution(id).is_some_and(Execution::is_eligible)
}

/// Any call that meets an overdue lease may mark it as expired.
fn marks_expiry(before: Option<&Execution>, step: &Step<'_>, id: ExecutionId) -> bool {
    let overdue = before.is_some_and(|before| {
        before.is_leased() && before.lease.as_ref().is_some_and(|lease| lease.expires_at <= step.now)
    });
    let marked = step
        .mirror
        .execution(id)
        .is_some_and(|after| after.state().ownership_state == OwnershipState::LeaseExpiredReclaimable);
    overdue && marked
}

fn grant(step: &Step<'_>, before: Option<&Execution>, after: &Execution, memo: &mut Memo, findings: &mut Findings) {
    let id = after.id;
    let live = before.filter(|before| before.is_leased());
    findings.check(live.is_none(), Invariant::SingleLease, || format!("{id} was leased when {} took it", step.op()));
    let fresh = after.lease.as_ref().is_some_and(|lease| memo.leases.insert(lease.id));
    findings.check(fresh, Invariant::SingleLease, || format!("{id}: lease {:?} was granted twice", after.lease));
    let last = memo.epochs.insert(id, after.epoch).unwrap_or_default();
    findings.check(after.epoch > last, Invariant::EpochRises, || {
        format!("{id}: {} granted epoch {} after {last}", step.op(), after.epoch)
    });
    let claimable = before.is_some_and(|before| {
        before.is_eligible() || before.is_lost() || (before.is_leased() && before.lease.is_some())
    });
    let delayed = before.is_some_and(|b| b.state().eligibility_state == EligibilityState::NotEligibleUntilTime);
    findings.check(!delayed, Invariant::DelayIsKept, || format!("{id} was taken while delayed"));
    findings.check(claimable || delayed, Invariant::PublicStateIsDerived, || {
        format!("{id} was taken out of {:?}", before.map(|before| before.state()))
    });
    consumed(step, before, after, memo, findings);
    capabilities(step, after, findings);
    reclaim_cap(step.mirror, after, findings);
}

fn consumed(step: &Step<'_>, before: Option<&Execution>, after: &Execution, memo: &mut Memo, findings: &mut Findings) {
    let id = after.id;
    let held = step.before::<Grant>(&Key::grant(id));
    let left = step.mirror.get::<Grant>(&Key::grant(id));
    findings
        .check(left.is_none(), Invariant::GrantIsSingleUse, || format!("{id} is owned and its grant is still there"));
    let lease = after.lease.as_ref();
    if let Some(grant) = held.filter(|grant| grant.is_live(step.now)) {
        let own = lease.is_some_and(|lease| {
            lease.worker_id == grant.worker_id && lease.worker_instance_id == grant.worker_instance_id
        });
        findings.check(own, Invariant::GrantIsSingleUse, || {
            format!("{id}: granted to {}, taken by {lease:?}", grant.worker_id)
        });
        let once = memo.consumed.insert(grant.id);
        findings.check(once, Invariant::GrantIsSingleUse, || format!("{id}: grant {} was consumed twice", grant.id));
    }
    let Some(Presents::Grant { worker, instance }) = step.call.map(|pending| &pending.call.presents) else { return };
    let wanted = match before.map(|before| (before.is_lost(), before.state().attempt_state)) {
        Some((true, _)) => GrantKind::Reclaim,
        Some((_, AttemptState::AttemptInterrupted)) => GrantKind::Resume,
        _ => GrantKind::Claim,
    };
    let good = held.is_some_and(|grant| {
        grant.is_live(step.now) && grant.worker_id == *worker && grant.worker_instance_id == *instance
    });
    findings.check(good, Invariant::GrantIsSingleUse, || {
        format!("{id}: {} consumed {held:?} as {instance}, wanted a {wanted} grant", step.op())
    });
}

fn issued(step: &Step<'_>, before: Option<&Grant>, after: &Grant, findings: &mut Findings) {
    let live = before.filter(|before| before.is_live(step.now));
    findings.check(live.is_none(), Invariant::GrantIsSingleUse, || {
        format!("{}: {} granted it while {:?} holds a grant", after.execution, step.op(), live.map(|g| &g.worker_id))
    });
    granted_to_the_able(step.mirror, after, findings);
    if let Some(execution) = step.mirror.execution(after.execution) {
        capabilities(step, execution, findings);
    }
}

fn granted_to_the_able(mirror: &Mirror, grant: &Grant, findings: &mut Findings) {
    if let Some(execution) = mirror.execution(grant.execution) {
        let covered = covers(&grant.capabilities, execution);
        findings.check(covered, Invariant::CapabilityIsRequired, || {
            format!("{}: granted to {} without {}", grant.execution, grant.worker_id, execution.class.requirement)
        });
    }
}

/// Whether a worker offers every token that is required.
fn covers(offered: &BTreeSet<String>, execution: &Execution) -> bool {
    execution.class.requirement.tokens().all(|token| offered.contains(token))
}

fn capabilities(step: &Step<'_>, after: &Execution, findings: &mut Findings) {
    let Some(Presents::Worker(worker)) = step.call.map(|pending| &pending.call.presents) else { return };
    if step.op() == OPERATOR {
        return;
    }
    let instance = &worker.instance;
    findings.check(covers(&worker.capabilities, after), Invariant::CapabilityIsRequired, || {
        format!("{}: {instance} got it without {}", after.id, after.class.requirement)
    });
    let handled = worker.kinds.as_ref().is_none_or(|kinds| kinds.contains(after.kind().as_str()));
    findings.check(handled, Invariant::CapabilityIsRequired, || {
        format!("{}: {instance} got it and does not handle {:?}", after.id, after.kind())
    });
}

fn reclaim_cap(mirror: &Mirror, after: &Execution, findings: &mut Findings) {
    let definition = mirror.get::<Definition>(&Key::definition(after.id));
    let cap = definition.and_then(|definition| definition.policy.as_ref()?.max_reclaim_count);
    let cap = cap.unwrap_or(DEFAULT_MAX_RECLAIM_COUNT);
    findings.check(after.reclaim_count <= cap, Invariant::ReclaimsAreCapped, || {
        format!("{}: {} reclaims, at most {cap}", after.id, after.reclaim_count)
    });
}

fn leased_is_indexed(execution: &Execution, entries: &[Entry], findings: &mut Findings) {
    let indexed = entries.iter().any(|entry| entry.index == Index::Due(DueKind::LeaseExpiry));
    let leased = execution.is_active() && execution.is_leased() && execution.lease.is_some();
    findings.check(indexed == leased, Invariant::LeasedIsIndexed, || {
        format!("{}: leased {leased}, but indexed {indexed}", execution.id)
    });
}

/// What ownership is at any moment.
pub(super) fn scan(mirror: &Mirror, findings: &mut Findings) {
    let mut leases: BTreeMap<LeaseId, ExecutionId> = BTreeMap::new();
    for record in mirror.records().values() {
        let Record::Execution(execution) = record else { continue };
        leased_is_indexed(execution, &record.entries(), findings);
        reclaim_cap(mirror, execution, findings);
        let other = execution.lease.as_ref().and_then(|lease| leases.insert(lease.id, execution.id));
        findings.check(other.is_none(), Invariant::SingleLease, || {
            format!("{} and {other:?} are owned through the same lease", execution.id)
        });
    }
    for grant in mirror.all::<Grant>() {
        let owned = mirror.execution(grant.execution).is_some_and(Execution::is_leased);
        findings.check(!owned, Invariant::GrantIsSingleUse, || {
            format!("{} is owned and its grant is still there", grant.execution)
        });
        granted_to_the_able(mirror, grant, findings);
    }
}

/// Calls whose repetition may be answered from what is stored.
const REPEATABLE: [&str; 11] = [
    "complete",
    "fail",
    "cancel",
    "delay",
    "wait_children",
    "suspend",
    "suspend_by_triple",
    "complete_execution",
    "fail_execution",
    "cancel_execution",
    "observe_signals",
];

/// A caller that had lost its claim before it called must not succeed.
pub(super) fn finish(pending: &Pending, answer: Answer<'_>, findings: &mut Findings) {
    let (Answer::Done(_), Some((fence, index))) = (answer, pending.call.fence) else { return };
    let standing = standing(pending.began.as_ref(), fence, index, pending.began_at);
    let silent = pending.writes == 0 && REPEATABLE.contains(&pending.call.op);
    let invariant = match standing {
        Standing::Holds => return,
        Standing::Lost => Invariant::LostOwnerFails,
        Standing::Foreign => Invariant::ForeignFenceChangesNothing,
    };
    // What nobody owns any more when the call comes to it can be cancelled without a fence.
    let unowned = pending.call.op == "cancel_execution";
    findings.check(silent || unowned, invariant, || {
        format!("{} of {:?} succeeded though its fence was {standing:?}", pending.call.op, pending.call.subject)
    });
}
