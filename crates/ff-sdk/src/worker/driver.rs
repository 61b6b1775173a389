//! One task: its handler runs while its lease is kept, then what came of it is reported.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use ff_core::Blob;
use ff_core::backend::inspection::ExecutionContext;
use ff_core::handle::{Handle, HandlePayload};
use tokio::task::{JoinError, JoinHandle};
use tracing::{Instrument, Span, info_span, warn};

use super::Shared;
use super::board::{Board, Entry};
use super::keeping::keep;
use super::reporting::{Report, report};
use crate::context::{Context, Parts};
use crate::error::{Stop, TaskError, TaskResult};
use crate::fate::{Fate, Interruption};

/// Runs one claimed execution to its report.
pub(super) async fn drive(shared: Arc<Shared>, board: Arc<Board>, handle: Handle) {
    let facts = match handle.peek() {
        Ok(facts) => facts,
        Err(error) => return warn!(%error, "a claim answered a handle that cannot be read"),
    };
    let execution = match shared.backend.read_execution_context(facts.execution_id).await {
        Ok(execution) => execution,
        Err(error) => {
            warn!(execution = %facts.execution_id, %error, "cannot read what to do");
            return report(&shared, &handle, Report::GiveBack).await;
        }
    };
    let span = span_of(&shared, &facts, &execution);
    run(shared, board, handle, facts, execution).instrument(span).await;
}

fn span_of(shared: &Shared, facts: &HandlePayload, execution: &ExecutionContext) -> Span {
    info_span!(
        "task",
        execution = %facts.execution_id,
        kind = %execution.execution_kind,
        attempt = facts.attempt_index.0,
        worker = %shared.instance_id,
    )
}

async fn run(
    shared: Arc<Shared>,
    board: Arc<Board>,
    handle: Handle,
    facts: HandlePayload,
    execution: ExecutionContext,
) {
    let kind = execution.execution_kind.clone();
    let Some(handler) = shared.handlers.get(&kind).cloned() else {
        let missing = TaskError::transient(format!("worker {} has no handler for {kind:?}", shared.worker_id));
        return report(&shared, &handle, Report::of(missing)).await;
    };
    let (fate, since) = (Fate::default(), Instant::now());
    let (execution_id, attempt_index) = (facts.execution_id, facts.attempt_index);
    let context = Context::new(Parts {
        backend: Arc::clone(&shared.backend),
        handle: handle.clone(),
        facts,
        execution,
        state: Arc::clone(&shared.state),
        fate: fate.clone(),
    });
    let mut job = tokio::spawn(handler(context).instrument(Span::current()));
    let place = board.put(Entry {
        handle: handle.clone(),
        execution_id,
        attempt_index,
        fate: fate.clone(),
        abort: job.abort_handle(),
        since,
    });
    let ended = tokio::select! {
        biased;
        ended = &mut job => Some(ended),
        () = outlived(&shared, &handle, &fate) => None,
    };
    drop(place);
    let verdict = judge(&fate, ended, &job);
    observe(&kind, &verdict, since);
    report(&shared, &handle, verdict).await;
}

/// Ends when the handler was told to stop and did not within its grace. Keeps the lease meanwhile.
async fn outlived(shared: &Shared, handle: &Handle, fate: &Fate) {
    let kept = async {
        keep(shared, handle, fate).await;
        std::future::pending::<()>().await;
    };
    let grace = async {
        fate.token().cancelled().await;
        tokio::time::sleep(shared.grace).await;
    };
    tokio::select! {
        () = kept => {}
        () = grace => {}
    }
}

type Ended = Result<TaskResult<Option<Blob>>, JoinError>;

/// What is to be reported.
fn judge(fate: &Fate, ended: Option<Ended>, job: &JoinHandle<TaskResult<Option<Blob>>>) -> Report {
    let Some(ended) = ended else {
        job.abort();
        warn!("a handler did not stop when it was told to; it was dropped");
        return if fate.is_lost() || fate.is_parked() { Report::Nothing } else { Report::GiveBack };
    };
    if fate.is_parked() || fate.is_lost() {
        return Report::Nothing;
    }
    let stopping = fate.interruption() == Some(&Interruption::Stopping);
    match ended {
        Ok(Ok(result)) => Report::Complete(result),
        // It was told to stop, so that it did not succeed says nothing about the work.
        Ok(Err(_)) if stopping => Report::GiveBack,
        Ok(Err(TaskError(Stop::Failed(failure)))) => Report::Fail(failure),
        Ok(Err(TaskError(Stop::Parked | Stop::Lost))) => Report::Nothing,
        Err(error) if error.is_panic() => {
            let panic = error.into_panic();
            Report::of(TaskError::transient(format!("the handler panicked: {}", panic_text(&*panic))))
        }
        Err(_) => Report::Nothing,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

fn observe(kind: &str, report: &Report, since: Instant) {
    let outcome = report.word();
    metrics::counter!("ff_worker_tasks_total", "kind" => kind.to_owned(), "outcome" => outcome).increment(1);
    metrics::histogram!("ff_worker_task_duration_seconds", "kind" => kind.to_owned())
        .record(since.elapsed().as_secs_f64());
}
