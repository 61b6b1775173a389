//! Telling the engine what came of a task, until it answers or the lease is over.

use std::time::Duration;

use ff_core::backend::attempts::FailureReason;
use ff_core::error::EngineError;
use ff_core::handle::Handle;
use ff_core::{Blob, TimestampMs};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::Shared;
use crate::error::{Failure, Stop, TaskError, is_loss};
use crate::task::engine_time;

/// The longest line that is surely taken.
const MESSAGE_MAX: usize = 200;

/// How long work waits that the engine could not be reached for.
const LATER_MS: u64 = 1_000;

const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

/// What came of a task.
pub(super) enum Report {
    /// It succeeded, perhaps with a result.
    Complete(Option<Blob>),
    /// It failed.
    Fail(Failure),
    /// Somebody else shall do it.
    GiveBack,
    /// The engine could not be reached; it is tried again in a while, which is no failure of the work.
    Later,
    /// The engine knows already: it waits, or it is no longer ours.
    Nothing,
}

impl Report {
    /// A failure, unless the error only says that there is nothing to report.
    pub(super) fn of(error: TaskError) -> Self {
        match error.0 {
            Stop::Failed(failure) => Self::Fail(failure),
            Stop::Hindered(_) => Self::Later,
            Stop::Parked | Stop::Lost => Self::Nothing,
        }
    }

    /// For metrics.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Complete(_) => "completed",
            Self::Fail(_) => "failed",
            Self::GiveBack => "given_back",
            Self::Later => "hindered",
            Self::Nothing => "released",
        }
    }
}

/// Reports, again and again while the engine cannot be reached and the lease may still hold.
pub(super) async fn report(shared: &Shared, handle: &Handle, report: Report) {
    let until = Instant::now() + shared.lease_ttl;
    let mut pause = PAUSE_FIRST;
    loop {
        let Err(error) = send(shared, handle, &report).await else { return };
        if is_loss(&error) {
            return debug!(%error, "the report came too late");
        }
        if let EngineError::Validation { .. } = error {
            return refused(shared, handle, report, &error).await;
        }
        if Instant::now() + pause >= until {
            return warn!(%error, "cannot report; the work is free when its lease runs out");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

async fn send(shared: &Shared, handle: &Handle, report: &Report) -> Result<(), EngineError> {
    match report {
        Report::Complete(result) => shared.backend.complete(handle, result.clone()).await,
        Report::Fail(failure) => shared.backend.fail(handle, reason(failure), failure.class).await.map(|_| ()),
        Report::GiveBack => shared.backend.delay(handle, TimestampMs::ZERO).await,
        Report::Later => {
            let now = engine_time(&*shared.backend).await?;
            shared.backend.delay(handle, now.plus(LATER_MS)).await
        }
        Report::Nothing => Ok(()),
    }
}

/// A result that the engine does not take, because it is too large for example, is a failure that repeating cannot help; a failure that it
/// does not take is told without its detail.
async fn refused(shared: &Shared, handle: &Handle, report: Report, error: &EngineError) {
    warn!(%error, "the engine refuses a report");
    let instead = match report {
        Report::Complete(_) => Report::of(TaskError::permanent(format!("the result was refused: {error}"))),
        Report::Fail(failure) => Report::of(TaskError::of(failure.class, "the failure was too long to be told")),
        Report::GiveBack | Report::Later | Report::Nothing => return,
    };
    if let Err(error) = send(shared, handle, &instead).await {
        warn!(%error, "the engine refuses that, too; the work is free when its lease runs out");
    }
}

/// Text as the engine takes it: one line, not too long.
pub(crate) fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

/// A failure as the engine takes it: one short line, and everything else as the detail.
fn reason(failure: &Failure) -> FailureReason {
    let message = one_line(&failure.message);
    let detail = match &failure.detail {
        Some(detail) => Some(detail.to_string()),
        None if message != failure.message => Some(failure.message.clone()),
        None => None,
    };
    FailureReason { message, detail: detail.map(|text| text.as_str().into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(message: &str) -> Failure {
        let Stop::Failed(failure) = TaskError::transient(message).0 else { unreachable!() };
        failure
    }

    #[test]
    fn a_short_line_is_reported_as_it_is() {
        assert_eq!(reason(&failure("no disk")), FailureReason::new("no disk"));
    }

    #[test]
    fn a_long_text_is_cut_at_a_letter_and_kept_whole_in_the_detail() {
        let text = "ä".repeat(MESSAGE_MAX) + "\nnext line";
        let reason = reason(&failure(&text));
        assert!(reason.message.len() <= MESSAGE_MAX + '…'.len_utf8() && reason.message.ends_with("ä…"));
        assert_eq!(reason.detail.as_deref(), Some(text.as_bytes()));
    }
}
