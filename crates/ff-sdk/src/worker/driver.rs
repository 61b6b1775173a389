//! One task: its handler runs while its lease is kept, then what came of it is reported.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use ff_core::Blob;
use ff_core::backend::inspection::ExecutionContext;
use ff_core::handle::{Handle, HandlePayload};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span, info_span, warn};

use super::Shared;
use super::board::Board;
use super::keeping::keep;
use super::reporting::{Report, report};
use crate::context::{Context, Parts};
use crate::error::{TaskError, TaskResult};
use crate::fate::{Fate, Interruption};
use crate::handler::Handler;

/// How long a handler that was dropped may take to be gone.
const GONE: Duration = Duration::from_secs(1);

/// Runs one execution, claimed no later than `taken_at`, to its report.
pub(super) async fn drive(shared: Arc<Shared>, board: Arc<Board>, handle: Handle, taken_at: Instant) {
    let facts = match handle.peek() {
        Ok(facts) => facts,
        Err(error) => return warn!(%error, "a claim answered a handle that cannot be read"),
    };
    let fate = Fate::default();
    let _place = board.put(&handle, (facts.execution_id, facts.attempt_index), &fate);
    let execution = match shared.backend.read_execution_context(facts.execution_id).await {
        Ok(execution) => execution,
        Err(error) => {
            warn!(execution = %facts.execution_id, %error, "cannot read what to do");
            return report(&shared, &handle, Report::of(TaskError::from_engine(&error))).await;
        }
    };
    let span = span_of(&shared, &facts, &execution);
    let task = Task { shared, handle, facts, fate, taken_at };
    task.run(execution).instrument(span).await;
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

type Answer = TaskResult<Option<Blob>>;
type Job = AbortOnDropHandle<Answer>;
type Ended = Result<Answer, JoinError>;

/// One claimed execution.
struct Task {
    shared: Arc<Shared>,
    handle: Handle,
    facts: HandlePayload,
    fate: Fate,
    taken_at: Instant,
}

impl Task {
    async fn run(self, execution: ExecutionContext) {
        let (kind, began) = (execution.execution_kind.clone(), Instant::now());
        let verdict = match self.shared.handlers.get(&kind).cloned() {
            // It was told to stop before it began.
            Some(_) if self.fate.token().is_cancelled() => self.judge(None),
            Some(handler) => self.handle(&handler, execution).await,
            None => {
                let worker = &self.shared.worker_id;
                Report::of(TaskError::transient(format!("worker {worker} has no handler for {kind:?}")))
            }
        };
        observe(kind, &verdict, began);
        report(&self.shared, &self.handle, verdict).await;
    }

    async fn handle(&self, handler: &Handler, execution: ExecutionContext) -> Report {
        let context = Context::new(Parts {
            backend: Arc::clone(&self.shared.backend),
            handle: self.handle.clone(),
            facts: self.facts.clone(),
            execution,
            state: Arc::clone(&self.shared.state),
            fate: self.fate.clone(),
        });
        let mut job = AbortOnDropHandle::new(tokio::spawn(handler(context).instrument(Span::current())));
        let kept = keep(&self.shared, &self.handle, &self.fate, self.taken_at);
        let ended = tokio::select! {
            biased;
            ended = self.ended(&mut job) => ended,
            never = async { kept.await; std::future::pending().await } => never,
        };
        self.judge(ended)
    }

    /// How the handler ended; nothing when it had to be dropped.
    async fn ended(&self, job: &mut Job) -> Option<Ended> {
        let grace = async {
            self.fate.token().cancelled().await;
            tokio::time::sleep(self.shared.grace).await;
        };
        tokio::select! {
            biased;
            ended = &mut *job => return Some(ended),
            () = grace => {}
        }
        warn!("a handler did not stop when it was told to; it is dropped");
        job.abort();
        if tokio::time::timeout(GONE, &mut *job).await.is_err() {
            warn!(
                "a handler that blocks its thread cannot be dropped; its work stays with this worker until the lease runs out"
            );
            self.fate.interrupt(Interruption::LeaseLost { detail: "the handler cannot be stopped".to_owned() });
        }
        None
    }

    /// What is to be reported.
    fn judge(&self, ended: Option<Ended>) -> Report {
        if !self.fate.is_ours() {
            return Report::Nothing;
        }
        match ended {
            None => Report::GiveBack,
            Some(Ok(Ok(result))) => Report::Complete(result),
            // It was told to stop, so that it did not succeed says nothing about the work.
            Some(Ok(Err(_))) if self.fate.interruption() == Some(&Interruption::Stopping) => Report::GiveBack,
            Some(Ok(Err(error))) => Report::of(error),
            Some(Err(error)) if error.is_panic() => {
                let panic = error.into_panic();
                Report::of(TaskError::transient(format!("the handler panicked: {}", panic_text(&*panic))))
            }
            Some(Err(_)) => Report::Nothing,
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

fn observe(kind: String, report: &Report, began: Instant) {
    let outcome = report.word();
    metrics::counter!("ff_worker_tasks_total", "kind" => kind.clone(), "outcome" => outcome).increment(1);
    metrics::histogram!("ff_worker_task_duration_seconds", "kind" => kind).record(began.elapsed().as_secs_f64());
}
