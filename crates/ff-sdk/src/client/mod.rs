//! Clients: they submit work, wait for it, answer its questions, and look.

mod approvals;
mod budgets;
mod ending;
mod flow;
mod frames;
mod run;

use std::sync::Arc;

use ff_core::backend::EngineBackend;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionOutcome, CreateExecutionResult};
use ff_core::backend::signals::{DeliverSignalArgs, DeliverSignalResult};
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::trace::TraceContext;
use serde::Serialize;

pub use budgets::Budget;
pub use ending::Ending;
pub use flow::{FlowBuilder, FlowRun};
pub use frames::{FrameFeed, FramePlace};
pub use run::Run;

use crate::context::Callback;
use crate::error::{Error, Result};
use crate::task::{DEFAULT_LANE, JSON, Task};

/// The namespace of clients and workers that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Submits work and deals with what was submitted, for one namespace. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    backend: Arc<dyn EngineBackend>,
    namespace: Namespace,
    trace: Option<TraceContext>,
}

impl Client {
    /// A client for a namespace.
    ///
    /// # Errors
    /// [`Error::Setup`] when the name is malformed.
    pub fn new(backend: Arc<dyn EngineBackend>, namespace: impl AsRef<str>) -> Result<Self> {
        let namespace = Namespace::new(namespace).map_err(|error| Error::Setup(error.to_string()))?;
        Ok(Self::within(backend, namespace))
    }

    pub(crate) const fn within(backend: Arc<dyn EngineBackend>, namespace: Namespace) -> Self {
        Self { backend, namespace, trace: None }
    }

    /// What is submitted from now on belongs to this trace.
    #[must_use]
    pub fn traced(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// The backend, for every operation that has no short form here.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn EngineBackend> {
        &self.backend
    }

    /// The namespace.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Submits one task. With an idempotency key that is known, answers what was submitted first.
    ///
    /// # Errors
    /// When the task is malformed, or the engine refuses it or cannot be reached.
    pub async fn submit(&self, task: Task) -> Result<Run> {
        let args = self.submission(task).await?;
        Ok(match self.backend.create_execution(args).await? {
            CreateExecutionResult::Created { execution_id, .. } => Run::submitted(self.clone(), execution_id, false),
            CreateExecutionResult::Duplicate { execution_id } => Run::submitted(self.clone(), execution_id, true),
        })
    }

    /// Submits many tasks at once; one answer for each, in order. One that is refused does not affect the others.
    ///
    /// # Errors
    /// When a task is malformed (then nothing is submitted), or the engine cannot be reached.
    pub async fn submit_all(&self, tasks: Vec<Task>) -> Result<Vec<Result<Run>>> {
        let mut batch = Vec::with_capacity(tasks.len());
        for task in tasks {
            batch.push(self.submission(task).await?);
        }
        let outcomes = self.backend.create_executions(batch).await?;
        let run = |outcome| match outcome {
            CreateExecutionOutcome::Created { execution_id, .. } => {
                Ok(Run::submitted(self.clone(), execution_id, false))
            }
            CreateExecutionOutcome::Duplicate { execution_id } => Ok(Run::submitted(self.clone(), execution_id, true)),
            CreateExecutionOutcome::Refused { error } => {
                Err(Error::Setup(format!("refused, {}: {}", error.code, error.message)))
            }
        };
        Ok(outcomes.into_iter().map(run).collect())
    }

    /// What submitting a task asks of the backend, for those who hand it over in another way than [`submit`](Self::submit).
    ///
    /// # Errors
    /// When the task is malformed, or the engine cannot be reached.
    pub async fn submission(&self, task: Task) -> Result<CreateExecutionArgs> {
        task.check()?;
        let policy = task.policy_document();
        let delay_until = task.start_at(&*self.backend).await?;
        let lane = match task.lane {
            Some(lane) => lane,
            None => default_lane()?,
        };
        Ok(CreateExecutionArgs {
            input_payload: task.payload,
            payload_encoding: task.payload_encoding,
            priority: task.priority.unwrap_or_default(),
            idempotency_key: task.idempotency_key,
            tags: task.tags,
            policy,
            delay_until,
            trace_context: self.trace.clone(),
            ..CreateExecutionArgs::new(None, self.namespace.clone(), lane, task.kind)
        })
    }

    /// An execution that was submitted before.
    #[must_use]
    pub fn run(&self, id: ExecutionId) -> Run {
        Run::known(self.clone(), id)
    }

    /// Answers a [`Callback`] that was handed out.
    ///
    /// # Errors
    /// `InvalidToken` when the token is not the waitpoint's; when the waitpoint is closed, or the execution is over.
    pub async fn answer(
        &self,
        callback: &Callback,
        signal: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<DeliverSignalResult> {
        let args = DeliverSignalArgs {
            payload: Some(encode("the body of a signal", body)?.into()),
            payload_encoding: Some(JSON.to_owned()),
            source_type: "callback".to_owned(),
            ..DeliverSignalArgs::new(callback.execution_id, callback.waitpoint_id, signal, callback.token.clone())
        };
        Ok(self.backend.deliver_signal(args).await?)
    }
}

fn default_lane() -> Result<LaneId> {
    LaneId::new(DEFAULT_LANE).map_err(|error| Error::Setup(error.to_string()))
}

fn encode(what: &str, value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|source| Error::Encode { what: what.to_owned(), source })
}
