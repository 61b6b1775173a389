//! Setting a worker up.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ff_core::Blob;
use ff_core::backend::EngineBackend;
use ff_core::capability::CapabilitySet;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{RunningWorker, Shared, Worker};
use crate::client::DEFAULT_NAMESPACE;
use crate::context::{Context, State};
use crate::error::{Error, Result, TaskError};
use crate::handler::{self, Handler};
use crate::task::DEFAULT_LANE;

/// Most handlers of one worker at a time.
const CONCURRENCY_MAX: usize = 1024;

const DEFAULT_CONCURRENCY: usize = 16;
const DEFAULT_LEASE_TTL: Duration = Duration::from_secs(30);
const DEFAULT_LIVENESS_TTL: Duration = Duration::from_secs(60);
const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// How long one wait for work lasts at most.
const POLL: Duration = Duration::from_secs(25);

/// Sets a worker up: what it can do, for whom, and how much at once.
#[must_use = "a worker does nothing until it runs"]
pub struct WorkerBuilder {
    backend: Arc<dyn EngineBackend>,
    name: String,
    instance: Option<String>,
    namespace: String,
    lanes: Vec<String>,
    capabilities: BTreeSet<String>,
    handlers: HashMap<String, Handler>,
    twice: Option<String>,
    state: State,
    concurrency: usize,
    lease_ttl: Duration,
    liveness_ttl: Duration,
    drain: Duration,
    grace: Duration,
}

impl WorkerBuilder {
    pub(super) fn new(backend: Arc<dyn EngineBackend>) -> Self {
        Self {
            backend,
            name: "worker".to_owned(),
            instance: None,
            namespace: DEFAULT_NAMESPACE.to_owned(),
            lanes: Vec::new(),
            capabilities: BTreeSet::new(),
            handlers: HashMap::new(),
            twice: None,
            state: State::default(),
            concurrency: DEFAULT_CONCURRENCY,
            lease_ttl: DEFAULT_LEASE_TTL,
            liveness_ttl: DEFAULT_LIVENESS_TTL,
            drain: DEFAULT_DRAIN,
            grace: DEFAULT_GRACE,
        }
    }

    /// The function that does work of this kind. The worker takes only kinds it has a function for.
    ///
    /// The input is read from JSON, the answer is written as JSON. An error is a failure that may be retried, by the policy of the
    /// execution, unless it is [`TaskError::permanent`].
    pub fn on<F, Fut, In, Out, E>(self, kind: impl Into<String>, function: F) -> Self
    where
        F: Fn(Context, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, E>> + Send + 'static,
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
        E: Into<TaskError> + 'static,
    {
        self.handle(kind.into(), handler::typed(function))
    }

    /// As [`on`](Self::on) for bytes: the input is [`Context::payload`], the answer is stored as it is.
    pub fn on_raw<F, Fut, E>(self, kind: impl Into<String>, function: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Blob, E>> + Send + 'static,
        E: Into<TaskError> + 'static,
    {
        self.handle(kind.into(), handler::raw(function))
    }

    fn handle(mut self, kind: String, handler: Handler) -> Self {
        if self.handlers.insert(kind.clone(), handler).is_some() {
            self.twice.get_or_insert(kind);
        }
        self
    }

    /// What people call this worker; several processes may share it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// What this process is called; made up when absent. Two live processes must not share it.
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// Whose work it does.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// A queue to serve, beside those named before; [`DEFAULT_LANE`] when none is named.
    pub fn lane(mut self, lane: impl Into<String>) -> Self {
        self.lanes.push(lane.into());
        self
    }

    /// Something it can do that others cannot, beside what was named before.
    pub fn capability(mut self, capability: impl Into<String>) -> Self {
        self.capabilities.insert(capability.into());
        self
    }

    /// A value that handlers find with [`Context::state`]; one of each type.
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state.insert(value);
        self
    }

    /// How many handlers run at the same time; 16 unless said otherwise.
    pub const fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long work stays with a worker that is not heard of; 30 s unless said otherwise. Renewed at a third of it.
    pub const fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.lease_ttl = ttl;
        self
    }

    /// How long the registry believes a worker that is not heard of; 60 s unless said otherwise.
    pub const fn liveness_ttl(mut self, ttl: Duration) -> Self {
        self.liveness_ttl = ttl;
        self
    }

    /// How long handlers may go on when the worker stops; 30 s unless said otherwise.
    pub const fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// How long a handler that was told to stop may take before it is dropped; 5 s unless said otherwise.
    pub const fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Checks everything; nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Setup`] says what is wrong.
    pub fn build(self) -> Result<Worker> {
        self.check()?;
        let name = |what: &str, error: &dyn Display| Error::Setup(format!("worker {:?}: {what}: {error}", self.name));
        let instance = self.instance.clone().unwrap_or_else(|| format!("{}-{}", self.name, Uuid::new_v4().simple()));
        let lanes = if self.lanes.is_empty() { vec![DEFAULT_LANE.to_owned()] } else { self.lanes.clone() };
        let lanes: BTreeSet<LaneId> =
            lanes.iter().map(LaneId::new).collect::<Result<_, _>>().map_err(|error| name("lane", &error))?;
        let shared = Shared {
            worker_id: WorkerId::new(&self.name).map_err(|error| name("name", &error))?,
            instance_id: WorkerInstanceId::new(&instance).map_err(|error| name("instance", &error))?,
            namespace: Namespace::new(&self.namespace).map_err(|error| name("namespace", &error))?,
            lanes,
            capabilities: CapabilitySet { tokens: self.capabilities },
            backend: self.backend,
            handlers: self.handlers,
            state: Arc::new(self.state),
            concurrency: self.concurrency,
            lease_ttl: self.lease_ttl,
            liveness_ttl: self.liveness_ttl,
            poll: POLL,
            drain: self.drain,
            grace: self.grace,
        };
        Ok(Worker { shared: Arc::new(shared) })
    }

    fn check(&self) -> Result<()> {
        let refuse = |fault: String| Err(Error::Setup(format!("worker {:?} {fault}", self.name)));
        if let Some(kind) = &self.twice {
            return refuse(format!("has two handlers for {kind:?}"));
        }
        if self.handlers.is_empty() {
            return refuse("has no handler; add one with .on(kind, function)".to_owned());
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            return refuse(format!("cannot run {} at once; 1 to {CONCURRENCY_MAX} is possible", self.concurrency));
        }
        for (what, ttl) in [("lease", self.lease_ttl), ("liveness", self.liveness_ttl)] {
            if ttl < Duration::from_millis(100) {
                return refuse(format!("has a {what} of {ttl:?}; at least 100 ms is needed to renew it in time"));
            }
        }
        Ok(())
    }

    /// Builds and [runs](Worker::run).
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`Worker::run`].
    pub async fn run(self) -> Result<()> {
        self.build()?.run().await
    }

    /// Builds and [runs until](Worker::run_until) `stop` ends.
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`Worker::run_until`].
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<()> {
        self.build()?.run_until(stop).await
    }

    /// Builds and [starts](Worker::start).
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`Worker::start`].
    pub async fn start(self) -> Result<RunningWorker> {
        self.build()?.start().await
    }
}
