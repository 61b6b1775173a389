//! Workers: they take work, run its handler under a lease, and report what came of it.

mod board;
mod builder;
mod claiming;
mod driver;
mod heart;
mod keeping;
mod presence;
pub(crate) mod reporting;

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ff_core::backend::EngineBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::capability::CapabilitySet;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

pub use builder::WorkerBuilder;

use crate::context::State;
use crate::error::{Error, Result};
use crate::fate::Interruption;
use crate::handler::Handler;
use crate::task::millis;
use board::Board;

/// A worker, ready to run.
pub struct Worker {
    shared: Arc<Shared>,
}

/// What all parts of a worker share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn EngineBackend>,
    pub(crate) worker_id: WorkerId,
    pub(crate) instance_id: WorkerInstanceId,
    pub(crate) namespace: Namespace,
    pub(crate) lanes: BTreeSet<LaneId>,
    pub(crate) capabilities: CapabilitySet,
    pub(crate) handlers: HashMap<String, Handler>,
    pub(crate) state: Arc<State>,
    pub(crate) concurrency: usize,
    pub(crate) lease_ttl: Duration,
    pub(crate) liveness_ttl: Duration,
    pub(crate) poll: Duration,
    pub(crate) drain: Duration,
    pub(crate) grace: Duration,
}

impl Shared {
    /// What it has handlers for.
    fn kinds(&self) -> BTreeSet<String> {
        self.handlers.keys().cloned().collect()
    }

    fn claim_policy(&self, max_wait: Option<Duration>) -> ClaimPolicy {
        ClaimPolicy {
            max_wait_ms: max_wait.map(millis),
            namespaces: Some(BTreeSet::from([self.namespace.clone()])),
            kinds: Some(self.kinds()),
            ..ClaimPolicy::new(self.worker_id.clone(), self.instance_id.clone(), millis(self.lease_ttl))
        }
    }
}

impl Worker {
    /// Sets a worker up.
    pub fn builder(backend: Arc<dyn EngineBackend>) -> WorkerBuilder {
        WorkerBuilder::new(backend)
    }

    /// Runs until the process is asked to end (interrupt or termination signal), then finishes what it has begun.
    ///
    /// # Errors
    /// When the worker cannot be registered, or signals cannot be awaited.
    pub async fn run(self) -> Result<()> {
        let asked = || asked_to_end().map_err(|error| Error::Setup(format!("cannot wait for signals: {error}")));
        let first = asked()?;
        let running = self.start().await?;
        first.await;
        // Whoever asks twice does not want to wait.
        running.wind_down(asked()?).await;
        Ok(())
    }

    /// Runs until `stop` ends, then finishes what it has begun.
    ///
    /// # Errors
    /// When the worker cannot be registered.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<()> {
        let running = self.start().await?;
        stop.await;
        running.stop().await;
        Ok(())
    }

    /// Registers and begins to take work in the background.
    ///
    /// # Errors
    /// When the worker cannot be registered.
    pub async fn start(self) -> Result<RunningWorker> {
        presence::register(&self.shared).await?;
        Ok(RunningWorker::begin(self.shared))
    }
}

/// A worker that takes work in the background. Dropping it lets go of everything at once, as a crash would; [`stop`](Self::stop) is
/// the polite way.
pub struct RunningWorker {
    shared: Arc<Shared>,
    board: Arc<Board>,
    tasks: TaskTracker,
    stopping: CancellationToken,
    abandoned: CancellationToken,
    claimers: Vec<JoinHandle<()>>,
    beating: JoinHandle<()>,
    watching: JoinHandle<()>,
}

impl RunningWorker {
    fn begin(shared: Arc<Shared>) -> Self {
        let (board, tasks) = (Arc::new(Board::default()), TaskTracker::new());
        let (stopping, abandoned) = (CancellationToken::new(), CancellationToken::new());
        let slots = Arc::new(Semaphore::new(shared.concurrency));
        let claimers = shared.lanes.iter().map(|lane| {
            let claimer = claiming::Claimer {
                shared: Arc::clone(&shared),
                board: Arc::clone(&board),
                lane: lane.clone(),
                slots: Arc::clone(&slots),
                tasks: tasks.clone(),
                stopping: stopping.clone(),
                abandoned: abandoned.clone(),
            };
            tokio::spawn(claimer.run())
        });
        let claimers = claimers.collect();
        let beating = tokio::spawn(heart::beat(Arc::clone(&shared)));
        let watching = tokio::spawn(board::watch(Arc::clone(&shared), Arc::clone(&board)));
        info!(worker = %shared.worker_id, instance = %shared.instance_id, lanes = ?shared.lanes, "worker started");
        Self { shared, board, tasks, stopping, abandoned, claimers, beating, watching }
    }

    /// How many handlers run now.
    #[must_use]
    pub fn active(&self) -> usize {
        self.board.len()
    }

    /// The process as the registry knows it.
    #[must_use]
    pub fn instance_id(&self) -> &WorkerInstanceId {
        &self.shared.instance_id
    }

    /// Takes nothing new, lets handlers finish for a while, then tells the rest to stop and gives their work back.
    pub async fn stop(self) {
        self.wind_down(std::future::pending()).await;
    }

    /// As [`stop`](Self::stop); handlers may finish until `hurry` ends at the latest.
    async fn wind_down(mut self, hurry: impl Future<Output = ()>) {
        self.stopping.cancel();
        for claimer in self.claimers.drain(..) {
            // A claimer that panicked has nothing to finish.
            let _ = claimer.await;
        }
        self.tasks.close();
        let finished = tokio::select! {
            () = self.tasks.wait() => true,
            () = tokio::time::sleep(self.shared.drain) => false,
            () = hurry => false,
        };
        if !finished {
            self.board.interrupt_all(&Interruption::Stopping);
            self.tasks.wait().await;
        }
        // A late heartbeat would bring it back.
        self.beating.abort();
        presence::leave(&self.shared).await;
        info!(worker = %self.shared.worker_id, instance = %self.shared.instance_id, "worker stopped");
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.stopping.cancel();
        self.abandoned.cancel();
        for task in self.claimers.iter().chain([&self.beating, &self.watching]) {
            task.abort();
        }
    }
}

/// A wait that ends early and empty is repeated after a pause: an engine that closes answers at once.
pub(crate) async fn pause_if_early(began: Instant, asked: Duration) {
    const PAUSE: Duration = Duration::from_millis(100);
    if began.elapsed() < asked.min(PAUSE) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Ends when the process is asked to.
#[cfg(unix)]
fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Ends when the process is asked to.
#[cfg(not(unix))]
fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        // Without a way to be told, the worker runs until the process ends.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
