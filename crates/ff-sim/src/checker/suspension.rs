//! Suspensions, waitpoints and signals.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::TimestampMs;
use ff_core::backend::signals::DeliverSignalResult;
use ff_core::backend::suspension::{CountKind, ResumeCondition, SuspendOutcome};
use ff_core::error::{EngineError, ValidationKind};
use ff_core::ids::WaitpointId;
use ff_core::state::{CloseReason, WaitpointState};
use ff_engine::key::Key;
use ff_engine::records::{Execution, KeyringRecord, Signal, Suspension, Waitpoint};

use super::{Findings, Mirror, Pending, Step};
use crate::call::{Answer, Presents, SignalShown};
use crate::invariants::Invariant;

/// What earlier calls established.
#[derive(Default)]
pub(super) struct Memo {
    /// Accepted idempotency keys, and until when they count.
    keys: BTreeMap<(WaitpointId, String), TimestampMs>,
    /// When the grace of a retired signing key ends.
    retired: BTreeMap<String, TimestampMs>,
    current: Option<String>,
    /// When a retired key became current again.
    restored: BTreeMap<String, TimestampMs>,
    /// How a refused proof is told.
    refusals: BTreeSet<String>,
}

const DELIVERIES: [&str; 2] = ["deliver_signal", "deliver_approval_signal"];

pub(super) fn commit(step: &Step<'_>, memo: &mut Memo, findings: &mut Findings) {
    for (before, after) in step.changed::<Execution>() {
        if let Some(after) = after {
            open_while_suspended(step.mirror, after, findings);
            resumed_through(step, before, after, findings);
        }
    }
    for (before, after) in step.changed::<Suspension>() {
        if let Some(after) = after {
            suspension(step, before, after, findings);
        }
    }
    for (before, after) in step.changed::<Waitpoint>() {
        let reopened = before.is_some_and(|before| !before.state.is_open()) && after.is_some_and(|a| a.state.is_open());
        findings.check(!reopened, Invariant::ClosedWaitpointsStayClosed, || format!("{after:?} was closed"));
    }
    for (before, after) in step.changed::<Signal>() {
        if let Some(after) = after {
            signal(step, before, after, memo, findings);
        }
    }
    keyring(step, memo);
}

fn open_while_suspended(mirror: &Mirror, after: &Execution, findings: &mut Findings) {
    let open: Vec<u32> = mirror.suspensions(after.id).filter(|s| s.closed.is_none()).map(|s| s.ordinal).collect();
    let wanted: Vec<u32> = after.suspension.into_iter().collect();
    findings.check(
        open == wanted && after.is_suspended() == after.suspension.is_some(),
        Invariant::OneOpenSuspension,
        || format!("{}: {} with open suspensions {open:?}, current {wanted:?}", after.id, after.public_state()),
    );
    if after.is_terminal() {
        let left = mirror.waitpoints(after.id).find(|waitpoint| waitpoint.state.is_open());
        findings.check(left.is_none(), Invariant::ClosedWaitpointsStayClosed, || {
            format!("{}: terminal with open waitpoint {:?}", after.id, left.map(|waitpoint| waitpoint.id))
        });
    }
}

/// A signal resumes only the suspension its waitpoint is bound to, and keeps the attempt.
fn resumed_through(step: &Step<'_>, before: Option<&Execution>, after: &Execution, findings: &mut Findings) {
    let resumed = before.filter(|before| before.is_suspended() && after.is_runnable());
    if let Some(before) = resumed {
        let same = before.attempt_id == after.attempt_id && before.attempt_index == after.attempt_index;
        findings.check(same, Invariant::ResumeKeepsAttempt, || format!("{}: resumed with another attempt", after.id));
    }
    let Some(shown) = shown(step).filter(|_| DELIVERIES.contains(&step.op())) else { return };
    let waitpoint = step.before::<Waitpoint>(&Key::waitpoint(after.id.partition(), shown.waitpoint));
    let home = waitpoint.is_some_and(|waitpoint| waitpoint.execution == after.id);
    let current =
        waitpoint.is_some_and(|w| w.suspension.is_some() && w.suspension == before.and_then(|b| b.suspension));
    let ownership = before.is_some_and(|before| before.state() != after.state());
    findings.check(home && (current || !ownership), Invariant::SignalStaysHome, || {
        format!("{}: changed by a signal to {waitpoint:?}", after.id)
    });
}

fn shown<'a>(step: &'a Step<'_>) -> Option<&'a SignalShown> {
    match &step.call?.call.presents {
        Presents::Signal(shown) => Some(shown),
        _ => None,
    }
}

fn suspension(step: &Step<'_>, before: Option<&Suspension>, after: &Suspension, findings: &mut Findings) {
    let reopened = before.is_some_and(|before| before.closed.is_some()) && after.closed.is_none();
    findings.check(!reopened, Invariant::OneOpenSuspension, || format!("{}: {after:?} was closed", after.execution));
    closed_with_its_waitpoints(step.mirror, after, findings);
    condition(step, after, findings);
}

fn closed_with_its_waitpoints(mirror: &Mirror, suspension: &Suspension, findings: &mut Findings) {
    if suspension.closed.is_none() {
        return;
    }
    let home = suspension.execution.partition();
    let is_open = |id: &WaitpointId| {
        mirror.get::<Waitpoint>(&Key::waitpoint(home, *id)).is_some_and(|waitpoint| waitpoint.state.is_open())
    };
    let left = suspension.waitpoints.iter().find(|id| is_open(id));
    findings.check(left.is_none(), Invariant::ClosedWaitpointsStayClosed, || {
        format!("{}: suspension {} is closed and waitpoint {left:?} is not", suspension.execution, suspension.ordinal)
    });
}

/// An open suspension's signals do not satisfy it; one that a signal resumed is satisfied.
fn condition(step: &Step<'_>, suspension: &Suspension, findings: &mut Findings) {
    let holds = holds(step.mirror, suspension, &suspension.condition);
    let invariant = match step.op() {
        "suspend" | "suspend_by_triple" => Invariant::BufferedSignalsCount,
        _ => Invariant::ConditionIsHonoured,
    };
    let by_signal = DELIVERIES.contains(&step.op()) || invariant == Invariant::BufferedSignalsCount;
    match suspension.closed {
        None => not_yet_satisfied(step.mirror, suspension, invariant, findings),
        Some((_, CloseReason::Resumed)) if by_signal => findings.check(holds, invariant, || {
            format!("{}: resumed though not satisfied: {:?}", suspension.execution, suspension.condition)
        }),
        Some(_) => {}
    }
}

fn not_yet_satisfied(mirror: &Mirror, suspension: &Suspension, invariant: Invariant, findings: &mut Findings) {
    findings.check(!holds(mirror, suspension, &suspension.condition), invariant, || {
        format!("{}: satisfied and still open: {:?}", suspension.execution, suspension.condition)
    });
}

/// What suspensions and their waitpoints are at any moment.
pub(super) fn scan(mirror: &Mirror, findings: &mut Findings) {
    for execution in mirror.all::<Execution>() {
        open_while_suspended(mirror, execution, findings);
    }
    for suspension in mirror.all::<Suspension>() {
        closed_with_its_waitpoints(mirror, suspension, findings);
        if suspension.closed.is_none() {
            not_yet_satisfied(mirror, suspension, Invariant::ConditionIsHonoured, findings);
        }
    }
}

/// Whether the signals that arrived satisfy a condition: no state, no order, only what is there.
fn holds(mirror: &Mirror, suspension: &Suspension, condition: &ResumeCondition) -> bool {
    let home = suspension.execution.partition();
    let arrived = |keys: &[String]| -> Vec<&Signal> {
        let bound = suspension.waitpoints.iter().filter(|id| {
            let waitpoint = mirror.get::<Waitpoint>(&Key::waitpoint(home, **id));
            waitpoint.is_some_and(|waitpoint| keys.contains(&waitpoint.key))
        });
        bound.flat_map(|id| mirror.signals(*id)).collect()
    };
    match condition {
        ResumeCondition::Single { waitpoint_key, matcher } => {
            arrived(std::slice::from_ref(waitpoint_key)).iter().any(|signal| matcher.accepts(&signal.name))
        }
        ResumeCondition::OperatorOnly {} | ResumeCondition::TimeoutOnly {} => false,
        ResumeCondition::AllOf { members } => members.iter().all(|member| self::holds(mirror, suspension, member)),
        ResumeCondition::Count { n, count_kind, matcher, waitpoints } => {
            let distinct: BTreeSet<String> = arrived(waitpoints)
                .into_iter()
                .filter(|signal| matcher.as_ref().is_none_or(|matcher| matcher.accepts(&signal.name)))
                .map(|signal| match count_kind {
                    CountKind::DistinctWaitpoints => signal.waitpoint.to_string(),
                    CountKind::DistinctSignals => signal.id.to_string(),
                    CountKind::DistinctSources => format!("{}\n{}", signal.source_type, signal.source_identity),
                })
                .collect();
            distinct.len() >= *n as usize
        }
    }
}

fn signal(step: &Step<'_>, before: Option<&Signal>, after: &Signal, memo: &mut Memo, findings: &mut Findings) {
    if !DELIVERIES.contains(&step.op()) {
        return;
    }
    findings.check(before.is_none(), Invariant::SignalAcceptedOnce, || {
        format!("signal {} was accepted again at {}", after.id, after.waitpoint)
    });
    let waitpoint = step.before::<Waitpoint>(&Key::waitpoint(after.home, after.waitpoint));
    let state = waitpoint.map(|waitpoint| waitpoint.state);
    findings.check(
        matches!(state, Some(WaitpointState::Active | WaitpointState::Pending)),
        Invariant::ClosedWaitpointsStayClosed,
        || format!("a signal was accepted at {} in {state:?}", after.waitpoint),
    );
    let Some(shown) = shown(step) else { return };
    findings.check(shown.genuine, Invariant::TokenGrace, || format!("{} accepted a false token", after.waitpoint));
    let kid = shown.token.kid();
    let began = step.call.map_or(step.now, |pending| pending.began_at);
    let valid = memo.retired.get(kid).is_none_or(|until| *until >= began);
    findings.check(valid, Invariant::TokenGrace, || format!("{} accepted a token of retired {kid}", after.waitpoint));
    if let Some(key) = shown.key.clone().filter(|_| shown.dedup_ttl_ms > 0) {
        let until = memo.keys.insert((after.waitpoint, key.clone()), step.now.plus(shown.dedup_ttl_ms));
        findings.check(until.is_none_or(|until| until <= step.now), Invariant::SignalAcceptedOnce, || {
            format!("key {key:?} was accepted again at {}", after.waitpoint)
        });
    }
}

/// Follows the signing keys: a key that is no longer current ends with its grace.
fn keyring(step: &Step<'_>, memo: &mut Memo) {
    for (_, after) in step.changed::<KeyringRecord>() {
        let Some(current) = after.and_then(|record| record.ring.current_kid()) else { continue };
        if let Some(old) = memo.current.replace(current.to_owned()).filter(|old| old != current) {
            let grace: u64 =
                step.call.and_then(|pending| pending.call.detail.rsplit('=').next()?.parse().ok()).unwrap_or(0);
            memo.retired.insert(old, step.now.plus(grace));
        }
        if memo.retired.remove(current).is_some() {
            memo.restored.insert(current.to_owned(), step.now);
        }
    }
}

pub(super) fn finish(pending: &Pending, answer: Answer<'_>, mirror: &Mirror, memo: &mut Memo, findings: &mut Findings) {
    if let Some(SuspendOutcome::AlreadySatisfied { .. }) = answer.is() {
        let owner = |execution: &Option<Execution>| execution.as_ref().map(Execution::ownership);
        let kept = match (owner(&pending.began), owner(&pending.left)) {
            // Others may have acted before.
            (Some(began), Some(left)) => began.epoch != left.epoch || began.same_owner(&left),
            _ => true,
        };
        findings.check(kept, Invariant::AlreadySatisfiedKeepsLease, || {
            format!("{:?}: {:?} became {:?}", pending.call.subject, pending.began, pending.left)
        });
    }
    let Presents::Signal(shown) = &pending.call.presents else { return };
    let exists = pending.began.is_some();
    match answer {
        Answer::Refused(EngineError::Validation { kind: ValidationKind::InvalidToken, detail }) => {
            let kid = shown.token.kid();
            let meanwhile = memo.restored.get(kid).is_some_and(|at| *at >= pending.began_at);
            let retired = memo.retired.contains_key(kid) || meanwhile;
            let home = pending.call.subject.map(ff_core::ids::ExecutionId::partition);
            // A purge may have come in between.
            let gone =
                home.is_none_or(|home| mirror.get::<Waitpoint>(&Key::waitpoint(home, shown.waitpoint)).is_none());
            findings.check(!shown.genuine || retired || gone, Invariant::TokenGrace, || {
                format!("a good token of {} was refused: {detail}", shown.waitpoint)
            });
            if !shown.genuine {
                memo.refusals.insert(detail.clone());
                findings
                    .check(memo.refusals.len() == 1, Invariant::RefusalsLookAlike, || format!("{:?}", memo.refusals));
            }
        }
        Answer::Refused(error) if !shown.genuine && exists => {
            findings.check(false, Invariant::RefusalsLookAlike, || format!("a false token was answered {error}"));
        }
        Answer::Done(_) => {
            let told = answer.is::<DeliverSignalResult>();
            findings.check(shown.genuine, Invariant::TokenGrace, || format!("a false token was answered {told:?}"));
        }
        _ => {}
    }
}
