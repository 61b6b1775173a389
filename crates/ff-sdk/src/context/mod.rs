//! What a handler can know and do while it runs.
//!
//! A handler may run more than once for one execution: after a retry, after its worker died, and after every wait that parks the execution.
//! What must not happen twice goes into a [step](Context::step); waits, sleeps and children remember themselves.

mod children;
mod state;
mod steps;
mod stream;
mod waits;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::backend::EngineBackend;
use ff_core::backend::budgets::{ReportUsageResult, UsageDimensions};
use ff_core::backend::inspection::ExecutionContext;
use ff_core::backend::suspension::Resumption;
use ff_core::error::EngineError;
use ff_core::handle::{Handle, HandlePayload};
use ff_core::ids::{BudgetId, ExecutionId, FlowId, LaneId, Namespace};
use ff_core::trace::TraceContext;
use ff_core::{Blob, TimestampMs};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

pub use children::{Child, ChildFailed};
pub(crate) use state::State;
pub use stream::Frames;
pub use waits::{Answer, Callback, Wait};

use crate::client::Client;
use crate::error::{Stop, TaskError, TaskResult, is_loss};
use crate::fate::{Fate, Interruption, explain_loss};
use crate::handler::decode;
use crate::task::engine_time;
use crate::worker::reporting::one_line;

/// What a handler can know and do while it runs. Cheap to clone.
///
/// Once the execution is no longer this worker's, every call ends with an error for which
/// [`TaskError::is_lost`] holds, and the store accepts nothing.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

/// What a context is made of.
pub(crate) struct Parts {
    pub(crate) backend: Arc<dyn EngineBackend>,
    pub(crate) handle: Handle,
    pub(crate) facts: HandlePayload,
    pub(crate) execution: ExecutionContext,
    pub(crate) state: Arc<State>,
    pub(crate) fate: Fate,
}

struct Inner {
    parts: Parts,
    /// Values of steps, once read.
    steps: OnceCell<Mutex<BTreeMap<String, Blob>>>,
    /// Earlier waits that are over, once read.
    resumptions: OnceCell<Vec<Resumption>>,
    calls: Mutex<Calls>,
}

/// How often this run has come by a sleep, or by a wait or a callback of some name.
#[derive(Default)]
struct Calls(HashMap<String, usize>);

impl Calls {
    /// How often it came by this one before.
    fn count(&mut self, what: String) -> usize {
        let count = self.0.entry(what).or_default();
        *count += 1;
        *count - 1
    }
}

impl Context {
    pub(crate) fn new(parts: Parts) -> Self {
        let inner =
            Inner { parts, steps: OnceCell::new(), resumptions: OnceCell::new(), calls: Mutex::new(Calls::default()) };
        Self(Arc::new(inner))
    }

    fn parts(&self) -> &Parts {
        &self.0.parts
    }

    fn backend(&self) -> &dyn EngineBackend {
        &*self.parts().backend
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The execution.
    #[must_use]
    pub fn execution_id(&self) -> ExecutionId {
        self.parts().facts.execution_id
    }

    /// The kind of work.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.parts().execution.execution_kind
    }

    /// Whose work it is.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.parts().facts.namespace
    }

    /// The queue it came from.
    #[must_use]
    pub fn lane(&self) -> &LaneId {
        &self.parts().facts.lane_id
    }

    /// The flow it belongs to, if any.
    #[must_use]
    pub fn flow_id(&self) -> Option<FlowId> {
        self.parts().execution.flow_id
    }

    /// Which attempt this is, from 0. A handler that runs again after a wait is in the same attempt.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.parts().facts.attempt_index.0
    }

    /// The labels it was submitted with, and those set since.
    #[must_use]
    pub fn tags(&self) -> &BTreeMap<String, String> {
        &self.parts().execution.tags
    }

    /// The trace that the submitter wants this work to belong to.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.parts().execution.trace_context.as_ref()
    }

    /// The input as it was submitted.
    #[must_use]
    pub fn payload(&self) -> &Blob {
        &self.parts().execution.input_payload
    }

    /// The result of an upstream that hands it over under this name.
    ///
    /// # Errors
    /// When there is none, or it is of another type; repeating cannot help.
    pub fn input<T: DeserializeOwned>(&self, name: &str) -> TaskResult<T> {
        let Some(bytes) = self.parts().execution.inputs.get(name) else {
            return Err(TaskError::permanent(format!("no upstream hands over a result as {name:?}")));
        };
        decode(bytes).map_err(|error| TaskError::permanent(format!("the input {name:?} is of another type: {error}")))
    }

    /// The value of this type that the worker was given.
    ///
    /// # Errors
    /// When it was given none; repeating on this worker cannot help.
    pub fn state<T: Send + Sync + 'static>(&self) -> TaskResult<Arc<T>> {
        self.parts().state.get().ok_or_else(|| {
            let missing = std::any::type_name::<T>();
            TaskError::permanent(format!("the worker has no state of type {missing}; add it with .state(value)"))
        })
    }

    /// A client for the same namespace and trace, for everything that is not about this execution.
    #[must_use]
    pub fn client(&self) -> Client {
        let client = Client::within(Arc::clone(&self.parts().backend), self.namespace().clone());
        match self.trace() {
            Some(trace) => client.traced(trace.clone()),
            None => client,
        }
    }

    /// The proof that this worker holds the execution, for operations of the [backend](Client::backend) that have no short form here.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.parts().handle
    }

    /// Ends when the handler should stop: cancelled, lease lost, worker stopping.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.parts().fate.token().clone()
    }

    /// Whether the handler should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.parts().fate.token().is_cancelled()
    }

    /// Ends when the handler should stop, and says why.
    pub async fn cancelled(&self) -> Interruption {
        let fate = &self.parts().fate;
        fate.token().cancelled().await;
        fate.interruption().cloned().unwrap_or(Interruption::Stopping)
    }

    /// Says how far the work is; a long message is cut.
    ///
    /// # Errors
    /// When the execution is no longer this worker's, or the percentage is over 100.
    pub async fn progress(&self, percent: u8, message: &str) -> TaskResult {
        self.guarded(self.backend().progress(&self.parts().handle, Some(percent), Some(&one_line(message)))).await
    }

    /// Sets a label on the execution.
    ///
    /// # Errors
    /// When the label is malformed, or the execution is no longer this worker's.
    pub async fn set_tag(&self, key: &str, value: &str) -> TaskResult {
        self.guarded(self.backend().tag(&self.parts().handle, key, value)).await
    }

    /// Charges a budget with what was used. A [hard breach](ReportUsageResult::HardBreach) is an answer, not an error: nothing was
    /// charged then.
    ///
    /// # Errors
    /// When there is no such budget, or the execution is no longer this worker's.
    pub async fn report_usage(&self, budget: BudgetId, usage: UsageDimensions) -> TaskResult<ReportUsageResult> {
        self.guarded(self.backend().report_usage(&self.parts().handle, budget, usage)).await
    }

    /// The engine's time.
    async fn now(&self) -> TaskResult<TimestampMs> {
        self.asked(engine_time(self.backend())).await
    }

    /// Refuses to go on once the execution is not this run's any more.
    fn check(&self) -> TaskResult {
        let fate = &self.parts().fate;
        if fate.is_parked() {
            return Err(TaskError(Stop::Parked));
        }
        if fate.is_lost() { Err(TaskError(Stop::Lost)) } else { Ok(()) }
    }

    /// Makes a call while the execution is this worker's.
    async fn asked<T>(&self, call: impl Future<Output = Result<T, EngineError>>) -> TaskResult<T> {
        self.check()?;
        call.await.map_err(|error| TaskError::from_engine(&error))
    }

    /// Makes a call by handle, and notices when the execution is not this worker's any more.
    async fn guarded<T>(&self, call: impl Future<Output = Result<T, EngineError>>) -> TaskResult<T> {
        self.check()?;
        match call.await {
            Ok(answer) => Ok(answer),
            Err(error) if is_loss(&error) => {
                let Parts { backend, handle, facts, fate, .. } = self.parts();
                fate.interrupt(explain_loss(&**backend, &facts.worker_instance_id, handle, &error).await);
                Err(TaskError(Stop::Lost))
            }
            Err(error) => Err(TaskError::from_engine(&error)),
        }
    }

    /// Runs the call that parks the execution; after it this run of the handler is over.
    async fn parked<T>(&self, call: impl Future<Output = Result<(), EngineError>>) -> TaskResult<T> {
        self.guarded(call).await?;
        self.parts().fate.park();
        Err(TaskError(Stop::Parked))
    }
}
