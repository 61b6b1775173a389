//! How an execution may change, and what its attempts, times and completion events must then be.

use ff_core::backend::subscriptions::CompletionOutcome;
use ff_core::state::{
    AttemptState, AttemptType, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState,
    StateVector, TerminalOutcome,
};
use ff_engine::event::EventBody;
use ff_engine::key::Key;
use ff_engine::records::{Attempt, Definition, Execution};

use super::ownership::granted;
use super::{Findings, Mirror, Pending, Step};
use crate::call::Answer;
use crate::invariants::Invariant;

pub(super) fn commit(step: &Step<'_>, findings: &mut Findings) {
    for (before, after) in step.changed::<Execution>() {
        if let Some(after) = after {
            vector(after, findings);
            times(before, after, findings);
            delay(step, before, after, findings);
            retries(step, before, after, findings);
            if granted(before, Some(after)).is_some() {
                resumed_attempt(step, before, after, findings);
            }
            attempts(step.mirror, after, findings);
        }
        if let (Some(before), Some(after)) = (before, after) {
            terminal_is_final(before, after, findings);
        }
        completion(step, before, after, findings);
    }
    for (before, after) in step.changed::<Attempt>() {
        attempt(step, before, after, findings);
    }
    stray_completions(step, findings);
}

/// The derivation of the public state, stated once more.
fn derived(vector: &StateVector) -> PublicState {
    match (vector.lifecycle_phase, vector.terminal_outcome, vector.eligibility_state) {
        (LifecyclePhase::Terminal, TerminalOutcome::Success, _) => PublicState::Completed,
        (LifecyclePhase::Terminal, TerminalOutcome::Cancelled, _) => PublicState::Cancelled,
        (LifecyclePhase::Terminal, TerminalOutcome::Expired, _) => PublicState::Expired,
        (LifecyclePhase::Terminal, TerminalOutcome::Skipped, _) => PublicState::Skipped,
        (LifecyclePhase::Terminal, _, _) => PublicState::Failed,
        (LifecyclePhase::Suspended, _, _) => PublicState::Suspended,
        (LifecyclePhase::Active, _, _) => PublicState::Active,
        (_, _, EligibilityState::NotEligibleUntilTime) => PublicState::Delayed,
        (_, _, EligibilityState::BlockedByDependencies) => PublicState::WaitingChildren,
        (_, _, EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota) => PublicState::RateLimited,
        _ => PublicState::Waiting,
    }
}

/// Which reasons go with which eligibility.
fn reason_fits(vector: &StateVector) -> bool {
    use BlockingReason as Why;
    match (vector.lifecycle_phase, vector.eligibility_state) {
        (LifecyclePhase::Terminal, _) => vector.blocking_reason == Why::None,
        (LifecyclePhase::Active, _) => match vector.ownership_state {
            OwnershipState::Leased => vector.blocking_reason == Why::None,
            _ => vector.blocking_reason == Why::WaitingForWorker,
        },
        (LifecyclePhase::Suspended, _) => !matches!(vector.blocking_reason, Why::None | Why::WaitingForWorker),
        (_, EligibilityState::EligibleNow) => vector.blocking_reason == Why::WaitingForWorker,
        (_, EligibilityState::NotEligibleUntilTime) => {
            matches!(
                vector.blocking_reason,
                Why::WaitingForDelay | Why::WaitingForRetryBackoff | Why::WaitingForResumeDelay
            )
        }
        (_, EligibilityState::BlockedByDependencies) => vector.blocking_reason == Why::WaitingForChildren,
        (_, EligibilityState::BlockedByBudget) => vector.blocking_reason == Why::WaitingForBudget,
        (_, EligibilityState::BlockedByQuota) => vector.blocking_reason == Why::WaitingForQuota,
        (_, EligibilityState::BlockedByRoute) => vector.blocking_reason == Why::WaitingForCapableWorker,
        (_, EligibilityState::BlockedByOperator | EligibilityState::BlockedByLaneState) => {
            matches!(vector.blocking_reason, Why::PausedByOperator | Why::PausedByPolicy | Why::PausedByFlowCancel)
        }
        (_, EligibilityState::NotApplicable) => false,
    }
}

fn vector(after: &Execution, findings: &mut Findings) {
    let state = after.state();
    let sound = state.is_legal() && reason_fits(&state) && derived(&state) == after.public_state();
    findings.check(sound, Invariant::PublicStateIsDerived, || format!("{}: {state:?}", after.id));
    let leased = after.is_active() == after.lease.is_some();
    findings
        .check(leased, Invariant::LeasedIsIndexed, || format!("{}: {state:?} with lease {:?}", after.id, after.lease));
}

fn completion_time(after: &Execution, findings: &mut Findings) {
    findings.check(after.completed_at.is_some() == after.is_terminal(), Invariant::TimesAreStable, || {
        format!("{}: completed at {:?} in {}", after.id, after.completed_at, after.public_state())
    });
}

fn times(before: Option<&Execution>, after: &Execution, findings: &mut Findings) {
    completion_time(after, findings);
    let started = before.and_then(|before| before.started_at);
    findings.check(started.is_none() || started == after.started_at, Invariant::TimesAreStable, || {
        format!("{}: started at {:?}, now {:?}", after.id, started, after.started_at)
    });
}

/// A delayed execution leaves its delay in time, or for good, or because dependencies hold it.
fn delay(step: &Step<'_>, before: Option<&Execution>, after: &Execution, findings: &mut Findings) {
    let delayed = |e: &Execution| e.state().eligibility_state == EligibilityState::NotEligibleUntilTime;
    let Some(before) = before.filter(|before| delayed(before)) else { return };
    let due = before.wake_at.is_none_or(|at| at <= step.now);
    findings.check(due || !after.is_eligible(), Invariant::DelayIsKept, || {
        format!("{}: claimable at {} though delayed until {:?}", after.id, step.now, before.wake_at)
    });
}

fn retries(step: &Step<'_>, before: Option<&Execution>, after: &Execution, findings: &mut Findings) {
    let pending = |e: &Execution| e.state().attempt_state == AttemptState::PendingRetryAttempt;
    let counted = before.map_or(0, |before| before.retry_count);
    if !pending(after) || before.is_some_and(pending) {
        let replayed = before.is_some_and(|before| before.is_terminal() && !after.is_terminal());
        let expected = if replayed { 0 } else { counted };
        findings.check(after.retry_count == expected, Invariant::RetriesAreCapped, || {
            format!("{}: retry count {} after {counted} without a retry", after.id, after.retry_count)
        });
        return;
    }
    findings.check(after.retry_count == counted + 1, Invariant::RetriesAreCapped, || {
        format!("{}: retry count {} after {counted}", after.id, after.retry_count)
    });
    let definition = step.mirror.get::<Definition>(&Key::definition(after.id));
    let policy = definition.and_then(|definition| definition.policy.as_ref()?.retry_policy.as_ref());
    // A service may bring its own policy with the failure.
    let own_policy = step.op() == "fail_execution";
    let max = policy.map_or(0, |policy| policy.max_retries);
    findings.check(own_policy || after.retry_count <= max, Invariant::RetriesAreCapped, || {
        format!("{}: retry {} of at most {max}", after.id, after.retry_count)
    });
    let class = step.call.and_then(|pending| pending.call.class);
    findings.check(class.is_none_or(|class| class.is_retryable()), Invariant::RetriesAreCapped, || {
        format!("{}: a failure of class {class:?} is retried", after.id)
    });
}

/// The attempt that runs after a change of hands follows from the state before it.
fn resumed_attempt(step: &Step<'_>, before: Option<&Execution>, after: &Execution, findings: &mut Findings) {
    let Some(before) = before else { return };
    let id = after.id;
    let current = step.mirror.get::<Attempt>(&Key::attempt(id, after.attempt_index));
    let kind = current.map(|attempt| attempt.attempt_type);
    let resumes = before.is_runnable() && before.state().attempt_state == AttemptState::AttemptInterrupted;
    if resumes {
        let same = after.attempt_id == before.attempt_id
            && after.attempt_index == before.attempt_index
            && after.attempt_count == before.attempt_count;
        findings.check(same, Invariant::ResumeKeepsAttempt, || {
            format!("{id}: attempt {} became {}", before.attempt_index, after.attempt_index)
        });
        return;
    }
    let wanted = match before.state().attempt_state {
        AttemptState::PendingRetryAttempt => AttemptType::Retry,
        AttemptState::PendingReplayAttempt => AttemptType::Replay,
        AttemptState::AttemptInterrupted => AttemptType::Reclaim,
        _ => AttemptType::Initial,
    };
    findings.check(kind == Some(wanted), Invariant::AttemptsAreAccounted, || {
        format!("{id}: a claim from {:?} made {kind:?}", before.state().attempt_state)
    });
    findings.check(after.attempt_count == before.attempt_count + 1, Invariant::AttemptsAreAccounted, || {
        format!("{id}: {} attempts after {}", after.attempt_count, before.attempt_count)
    });
}

fn attempts(mirror: &Mirror, after: &Execution, findings: &mut Findings) {
    // A purge takes the attempts of an execution away before the execution itself.
    if after.purging {
        return;
    }
    let id = after.id;
    let mut count = 0;
    for attempt in mirror.attempts(id) {
        findings.check(attempt.index.0 == count, Invariant::AttemptsAreNumbered, || {
            format!("{id}: attempt {} where {count} was due", attempt.index)
        });
        count += 1;
        let last = count == after.attempt_count;
        findings.check(last || attempt.lifecycle.is_ended(), Invariant::AttemptsAreNumbered, || {
            format!("{id}: attempt {} is {} and not the last", attempt.index, attempt.lifecycle)
        });
        let open = !attempt.lifecycle.is_ended();
        findings.check(!open || !after.is_terminal(), Invariant::AttemptsAreNumbered, || {
            format!("{id}: terminal with attempt {} {}", attempt.index, attempt.lifecycle)
        });
    }
    findings.check(count == after.attempt_count, Invariant::AttemptsAreNumbered, || {
        format!("{id}: {count} attempts stored, {} counted", after.attempt_count)
    });
    let current = mirror.get::<Attempt>(&Key::attempt(id, after.attempt_index));
    let runs = current.is_some_and(|attempt| {
        let leased = after.lease.as_ref().is_some_and(|lease| lease.id == attempt.lease_id);
        !attempt.lifecycle.is_ended() && after.attempt_id == Some(attempt.id) && leased
    });
    findings.check(runs || !after.is_leased(), Invariant::AttemptsAreNumbered, || {
        format!("{id}: leased with attempt {:?}", current.map(|attempt| (attempt.id, attempt.lifecycle)))
    });
    let points_at_last = after.attempt_count == 0 || after.attempt_index.0 + 1 == after.attempt_count;
    findings.check(points_at_last, Invariant::AttemptsAreNumbered, || {
        format!("{id}: attempt {} is current of {}", after.attempt_index, after.attempt_count)
    });
}

fn attempt(step: &Step<'_>, before: Option<&Attempt>, after: Option<&Attempt>, findings: &mut Findings) {
    let (Some(before), Some(after)) = (before, after) else { return };
    findings.check(before.id == after.id, Invariant::AttemptsAreNumbered, || {
        format!("{}: attempt {} was made again by {}", after.execution, after.index, step.op())
    });
    findings.check(!before.lifecycle.is_ended() || before == after, Invariant::AttemptsAreNumbered, || {
        format!("{}: ended attempt {} changed from {before:?} to {after:?}", after.execution, after.index)
    });
}

/// A terminal execution changes only in what is not its outcome.
fn terminal_is_final(before: &Execution, after: &Execution, findings: &mut Findings) {
    if !(before.is_terminal() && after.is_terminal()) {
        return;
    }
    let same = before.state() == after.state()
        && before.completed_at == after.completed_at
        && before.failure == after.failure
        && before.cancellation == after.cancellation
        && before.epoch == after.epoch;
    findings.check(same, Invariant::CancelSparesTerminal, || {
        format!("{}: terminal {:?} became {:?}", after.id, before.state(), after.state())
    });
}

fn completion(step: &Step<'_>, before: Option<&Execution>, after: Option<&Execution>, findings: &mut Findings) {
    let Some(after) = after.filter(|after| after.is_terminal()) else { return };
    if before.is_some_and(Execution::is_terminal) {
        return;
    }
    let told: Vec<CompletionOutcome> = step
        .events
        .iter()
        .filter(|event| event.execution_id == Some(after.id))
        .filter_map(|event| match event.body {
            EventBody::Completion { outcome, .. } => Some(outcome),
            _ => None,
        })
        .collect();
    let wanted: Vec<_> = CompletionOutcome::of(after.state().terminal_outcome).into_iter().collect();
    findings.check(told == wanted, Invariant::OneCompletionEvent, || {
        format!("{}: ended {:?}, told {told:?}", after.id, after.state().terminal_outcome)
    });
}

/// Nobody tells of a completion that did not happen.
fn stray_completions(step: &Step<'_>, findings: &mut Findings) {
    for event in step.events {
        let (EventBody::Completion { outcome, .. }, Some(id)) = (&event.body, event.execution_id) else { continue };
        let entered = step.changed::<Execution>().any(|(before, after)| {
            after.is_some_and(|after| after.id == id && after.is_terminal())
                && !before.is_some_and(Execution::is_terminal)
        });
        findings.check(entered, Invariant::OneCompletionEvent, || {
            format!("{id}: {} told of {outcome} though nothing ended", step.op())
        });
    }
}

/// What executions and their attempts are at any moment.
pub(super) fn scan(mirror: &Mirror, findings: &mut Findings) {
    for execution in mirror.all::<Execution>() {
        vector(execution, findings);
        completion_time(execution, findings);
        findings.check(!execution.purging || execution.is_terminal(), Invariant::PurgeIsComplete, || {
            format!("{} is purged while {}", execution.id, execution.public_state())
        });
        attempts(mirror, execution, findings);
    }
}

/// A repeated call that wrote nothing recognised its own outcome.
pub(super) fn finish(pending: &Pending, answer: Answer<'_>, findings: &mut Findings) {
    let Answer::Done(_) = answer else { return };
    let Some((fence, _)) = pending.call.fence else { return };
    if pending.writes > 0 {
        return;
    }
    let Some(seen) = &pending.last_seen else { return };
    let outcome = seen.state().terminal_outcome;
    let same = seen.epoch == fence.lease_epoch;
    let own = same && seen.attempt_id == Some(fence.attempt_id);
    let recognised = match pending.call.op {
        "complete" | "complete_execution" => own && outcome == TerminalOutcome::Success,
        "fail" | "fail_execution" => {
            let retry = seen.state().attempt_state == AttemptState::PendingRetryAttempt;
            (own && outcome == TerminalOutcome::Failed) || (same && retry)
        }
        "cancel" | "cancel_execution" => outcome == TerminalOutcome::Cancelled,
        "delay" | "wait_children" => own && seen.is_runnable(),
        _ => return,
    };
    findings.check(recognised && pending.events == 0, Invariant::ReplayedReplyIsSilent, || {
        format!("{} of {} was answered again out of {:?}", pending.call.op, seen.id, seen.state())
    });
}
