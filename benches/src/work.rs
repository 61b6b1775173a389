//! What every scenario submits, claims and counts, through the public interface alone.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ff_core::backend::EngineBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::{Blob, TimestampMs};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::latency::{Latencies, Percentiles};
use crate::process::Usage;
use crate::settings::{PAYLOAD_BYTES, RESULT_BYTES};

/// Longer than any measurement: nothing here waits for a lease to end.
const LEASE_MS: u64 = 3_600_000;

/// Claims that may lose to others before something must be wrong.
const CLAIMS_MAX: u32 = 10_000;

/// Different priorities that submissions take in turn, on both sides.
const PRIORITIES: usize = 10;

/// The priority of the `nth` submission.
pub const fn priority(nth: usize) -> i32 {
    // Bounded by the number of priorities.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    let priority = (nth % PRIORITIES) as i32;
    priority
}

/// What one measurement of one side says.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// What was counted, per second.
    pub per_s: f64,
    /// How long one call took.
    pub calls: Percentiles,
    /// What one of those that were counted used; none where the kernel does not tell.
    pub cost: Option<Cost>,
}

/// What something used on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Processor time of all threads, in microseconds.
    pub cpu_us: f64,
    /// Bytes sent to the disk.
    pub disk_bytes: f64,
}

/// Runs while something is measured, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    begin: Instant,
    used: Option<Usage>,
}

impl Stopwatch {
    /// Begins now.
    pub fn start() -> Self {
        Self { used: Usage::now(), begin: Instant::now() }
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// When it will have run so long.
    pub fn after(&self, time: Duration) -> Instant {
        self.begin + time
    }

    /// So much was done until now.
    pub fn measured(&self, done: f64, calls: Latencies) -> Measured {
        let per_s = done / self.elapsed().as_secs_f64();
        let cost = self
            .used
            .zip(Usage::now())
            .map(|(before, now)| now.since(before))
            .map(|used| Cost { cpu_us: used.cpu.as_secs_f64() * 1e6 / done, disk_bytes: used.written as f64 / done });
        Measured { per_s, calls: calls.percentiles(), cost }
    }
}

/// A worker on a lane.
#[derive(Clone)]
pub struct Caller {
    backend: Arc<dyn EngineBackend>,
    namespace: Namespace,
    lane: LaneId,
    capabilities: CapabilitySet,
    policy: ClaimPolicy,
}

impl Caller {
    /// The worker of this number.
    pub fn new(backend: &Arc<dyn EngineBackend>, lane: &str, number: usize) -> Result<Self> {
        let worker = WorkerId::new("bench")?;
        let instance = WorkerInstanceId::new(format!("bench-{number}"))?;
        Ok(Self {
            backend: Arc::clone(backend),
            namespace: Namespace::new("bench")?,
            lane: LaneId::new(lane)?,
            capabilities: CapabilitySet::default(),
            policy: ClaimPolicy::new(worker, instance, LEASE_MS),
        })
    }

    /// The public interface.
    pub fn backend(&self) -> &dyn EngineBackend {
        &*self.backend
    }

    /// The tenant of everything.
    pub fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    /// The queue this worker uses.
    pub fn lane(&self) -> LaneId {
        self.lane.clone()
    }

    /// A submission with an input.
    pub fn submission(&self, priority: i32) -> CreateExecutionArgs {
        CreateExecutionArgs {
            input_payload: payload(),
            priority,
            ..CreateExecutionArgs::new(None, self.namespace(), self.lane(), "bench")
        }
    }

    /// Submits one execution.
    pub async fn create(&self, priority: i32) -> Result<ExecutionId> {
        self.submit(self.submission(priority)).await
    }

    /// Submits one execution that cannot be claimed before a time.
    pub async fn create_delayed(&self, until: TimestampMs) -> Result<ExecutionId> {
        self.submit(CreateExecutionArgs { delay_until: Some(until), ..self.submission(0) }).await
    }

    async fn submit(&self, args: CreateExecutionArgs) -> Result<ExecutionId> {
        match self.backend.create_execution(args).await? {
            CreateExecutionResult::Created { execution_id, .. } => Ok(execution_id),
            CreateExecutionResult::Duplicate { execution_id } => bail!("{execution_id} was there already"),
        }
    }

    /// Takes the best execution. There is one, since every caller submits before it claims; a call that lost it to
    /// others tries again.
    pub async fn claim(&self) -> Result<Handle> {
        for _ in 0..CLAIMS_MAX {
            if let Some(handle) = self.backend.claim(&self.lane, &self.capabilities, self.policy.clone()).await? {
                return Ok(handle);
            }
            tokio::task::yield_now().await;
        }
        bail!("{CLAIMS_MAX} claims found nothing although work is waiting")
    }

    /// Waits for an execution; nothing when none came in time.
    pub async fn wait(&self, wait: Duration) -> Result<Option<Handle>> {
        let max_wait_ms = Some(u64::try_from(wait.as_millis())?);
        let policy = ClaimPolicy { max_wait_ms, ..self.policy.clone() };
        Ok(self.backend.claim(&self.lane, &self.capabilities, policy).await?)
    }

    /// Ends an execution with a result.
    pub async fn complete(&self, handle: &Handle) -> Result<()> {
        Ok(self.backend.complete(handle, Some(Blob::from(vec![7; RESULT_BYTES]))).await?)
    }
}

/// The input of every execution.
pub fn payload() -> Blob {
    Blob::from(vec![7; PAYLOAD_BYTES])
}

/// Awaits a call and notes how long it took.
pub async fn timed<T>(latencies: &mut Latencies, call: impl Future<Output = Result<T>>) -> Result<T> {
    let begin = Instant::now();
    let answer = call.await?;
    latencies.note(begin.elapsed());
    Ok(answer)
}

/// Runs tasks side by side to their end; the first error ends them all.
pub async fn together<T, F>(tasks: impl IntoIterator<Item = F>) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut running: JoinSet<Result<T>> = tasks.into_iter().collect();
    let mut done = Vec::with_capacity(running.len());
    while let Some(ended) = running.join_next().await {
        done.push(ended??);
    }
    Ok(done)
}
