//! The end of an attempt, and the end of an execution.

use ff_core::backend::subscriptions::{CompletionOutcome, ReleaseReason};
use ff_core::fault::{Fault, is_on};
use ff_core::state::{AttemptLifecycle, CloseReason, StreamCloseReason, TerminalOutcome};
use ff_core::{Blob, Result, TimestampMs};

use super::ownership::close_stream;
use super::{Subject, close_all_waitpoints, close_suspension, graph, released};
use crate::draft::Draft;
use crate::event::EventBody;
use crate::key::Key;
use crate::records::{Attempt, AttemptEnd, Cancellation, Execution, Failure, Outcome};
use crate::store::Tx;

/// How an execution ends, in every place that shows it.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) outcome: TerminalOutcome,
    pub(crate) attempt: AttemptEnd,
    pub(crate) stream: StreamCloseReason,
    pub(crate) waitpoints: CloseReason,
    pub(crate) release: ReleaseReason,
    pub(crate) failure: Option<Failure>,
    pub(crate) cancellation: Option<Cancellation>,
    pub(crate) result: Option<Blob>,
}

impl Ending {
    /// It completed.
    pub(crate) const fn success(result: Option<Blob>) -> Self {
        Self {
            outcome: TerminalOutcome::Success,
            attempt: AttemptEnd {
                lifecycle: AttemptLifecycle::EndedSuccess,
                reason: None,
                category: None,
                taken: false,
            },
            stream: StreamCloseReason::AttemptSuccess,
            waitpoints: CloseReason::Cancelled,
            release: ReleaseReason::Completed,
            failure: None,
            cancellation: None,
            result,
        }
    }

    /// It failed for good.
    pub(crate) fn failed(reason: impl Into<String>, category: impl Into<String>) -> Self {
        let failure = Failure { reason: reason.into(), category: category.into() };
        Self {
            outcome: TerminalOutcome::Failed,
            attempt: AttemptEnd {
                lifecycle: AttemptLifecycle::EndedFailure,
                reason: Some(failure.reason.clone()),
                category: Some(failure.category.clone()),
                taken: false,
            },
            stream: StreamCloseReason::AttemptFailure,
            waitpoints: CloseReason::Cancelled,
            release: ReleaseReason::FailedTerminal,
            failure: Some(failure),
            cancellation: None,
            result: None,
        }
    }

    /// It was cancelled.
    pub(crate) fn cancelled(reason: impl Into<String>, by: impl Into<String>) -> Self {
        let cancellation = Cancellation { reason: reason.into(), by: by.into() };
        Self {
            outcome: TerminalOutcome::Cancelled,
            attempt: AttemptEnd {
                lifecycle: AttemptLifecycle::EndedCancelled,
                reason: Some(format!("cancelled: {}", cancellation.reason)),
                category: None,
                taken: true,
            },
            stream: StreamCloseReason::AttemptCancelled,
            waitpoints: CloseReason::Cancelled,
            release: ReleaseReason::Cancelled,
            failure: None,
            cancellation: Some(cancellation),
            result: None,
        }
    }

    /// A deadline or an attempt timeout ended it.
    pub(crate) fn expired(reason: &str, release: ReleaseReason) -> Self {
        Self {
            outcome: TerminalOutcome::Expired,
            stream: StreamCloseReason::Expired,
            waitpoints: CloseReason::Expired,
            release,
            ..Self::failed(reason, "timeout")
        }
        .taken(true)
    }

    /// A required dependency became impossible.
    pub(crate) fn skipped() -> Self {
        Self {
            outcome: TerminalOutcome::Skipped,
            attempt: AttemptEnd {
                lifecycle: AttemptLifecycle::EndedCancelled,
                reason: Some("dependency_impossible".to_owned()),
                category: None,
                taken: false,
            },
            stream: StreamCloseReason::DependencyImpossible,
            waitpoints: CloseReason::DependencyImpossible,
            release: ReleaseReason::DependencyImpossible,
            failure: None,
            cancellation: None,
            result: None,
        }
    }

    /// Says whether somebody else than the owner decides on it.
    #[must_use]
    pub(crate) const fn taken(mut self, taken: bool) -> Self {
        self.attempt.taken = taken;
        self
    }
}

/// Ends an execution and advances the graph it belongs to, in this commit.
pub(crate) async fn finish(tx: &mut dyn Tx, subject: Subject, ending: Ending) -> Result<Draft<Execution>> {
    let execution = end(tx, subject, ending).await?;
    graph::advance(tx, &execution).await?;
    Ok(execution)
}

/// Ends an execution without looking at its graph: attempt, stream, lease, waitpoints, grant, result, state, events.
pub(crate) async fn end(tx: &mut dyn Tx, mut subject: Subject, ending: Ending) -> Result<Draft<Execution>> {
    let now = tx.now();
    end_attempt(tx, &subject.execution, ending.attempt, ending.stream).await?;
    close_suspension(tx, &subject.execution, ending.waitpoints).await?;
    close_all_waitpoints(tx, &subject.execution, ending.waitpoints).await?;
    tx.delete(Key::grant(subject.execution.id));
    if let Some(result) = ending.result {
        tx.put(Outcome { execution: subject.execution.id, result });
        subject.execution.has_result = true;
    }
    let release = subject.execution.finish(ending.outcome, ending.failure, ending.cancellation, now);
    released(tx, &subject, release, ending.release);
    if let Some(outcome) = CompletionOutcome::of(ending.outcome).filter(|_| !is_on(Fault::CompletionNotEmitted)) {
        let flow_id = subject.execution.flow_id;
        subject.emit(tx, EventBody::Completion { outcome, flow_id });
    }
    subject.save(tx);
    Ok(subject.execution)
}

/// Ends the current attempt, if one is open, and closes its stream.
async fn end_attempt(tx: &mut dyn Tx, execution: &Execution, end: AttemptEnd, stream: StreamCloseReason) -> Result<()> {
    if execution.attempt_count == 0 {
        return Ok(());
    }
    let key = Key::attempt(execution.id, execution.attempt_index);
    let Some(mut attempt) = tx.get::<Attempt>(key).await? else { return Ok(()) };
    if attempt.lifecycle.is_ended() {
        return Ok(());
    }
    attempt.end(end, tx.now());
    tx.put(attempt);
    close_stream(tx, execution, stream).await
}

/// An attempt that failed and is to be followed by another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry<'a> {
    pub(crate) at: TimestampMs,
    pub(crate) reason: &'a str,
    pub(crate) category: &'a str,
    pub(crate) stream: StreamCloseReason,
    pub(crate) release: ReleaseReason,
    /// Whether somebody else than the owner decides on it.
    pub(crate) taken: bool,
}

/// Ends the attempt as failed and schedules the next one.
pub(crate) async fn retry_later(tx: &mut dyn Tx, mut subject: Subject, retry: Retry<'_>) -> Result<()> {
    let end = AttemptEnd {
        lifecycle: AttemptLifecycle::EndedFailure,
        reason: Some(retry.reason.to_owned()),
        category: Some(retry.category.to_owned()),
        taken: retry.taken,
    };
    end_attempt(tx, &subject.execution, end, retry.stream).await?;
    let release = subject.execution.schedule_retry(retry.at, retry.reason.to_owned(), tx.now());
    released(tx, &subject, release, retry.release);
    subject.save(tx);
    Ok(())
}
