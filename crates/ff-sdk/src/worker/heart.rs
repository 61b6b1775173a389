//! Heartbeats. The workers of a process that belong to one engine beat at the same moments, and whoever is first calls for all: the engine gets
//! them together and can make one commit of many.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ff_core::backend::workers::{HeartbeatWorkerArgs, HeartbeatWorkerOutcome};
use ff_core::error::EngineError;
use ff_core::ids::WorkerInstanceId;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::Instant;
use tracing::warn;

use super::{Shared, presence};

/// What a call of one worker came to.
type Beaten = Result<HeartbeatWorkerOutcome, EngineError>;

/// The calls of one moment, for everybody to wait for.
type Round = futures_util::future::Shared<BoxFuture<'static, Arc<HashMap<WorkerInstanceId, Beaten>>>>;

/// Who beats together: those of one engine, at one pace.
type CrewKey = (usize, Duration);

/// Workers that beat together.
#[derive(Default)]
struct Crew {
    members: Vec<Weak<Shared>>,
    /// The latest one.
    round: Option<(Instant, Round)>,
}

static CREWS: LazyLock<Mutex<HashMap<CrewKey, Crew>>> = LazyLock::new(Mutex::default);

fn crews() -> MutexGuard<'static, HashMap<CrewKey, Crew>> {
    CREWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Beats twice in the time for which the registry believes a worker; soon again when that fails.
pub(super) async fn beat(shared: Arc<Shared>) {
    let every = shared.liveness_ttl / 2;
    let place = Place::take(Arc::clone(&shared), every);
    loop {
        let moment = next_moment(every);
        tokio::time::sleep_until(moment).await;
        let mut beaten = place.beat(moment).await;
        while let Err(error) = stay(&shared, beaten).await {
            warn!(%error, "a heartbeat failed");
            tokio::time::sleep(shared.liveness_ttl / 12).await;
            beaten = call(&shared).await;
        }
    }
}

/// The same for all workers of a process.
fn next_moment(every: Duration) -> Instant {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    let first = *FIRST;
    let passed = first.elapsed().as_nanos() / every.as_nanos().max(1);
    u32::try_from(passed + 1).map_or_else(|_| Instant::now() + every, |moments| first + every * moments)
}

async fn call(shared: &Shared) -> Beaten {
    let (worker_instance_id, namespace) = (shared.instance_id.clone(), shared.namespace.clone());
    shared.backend.heartbeat_worker(HeartbeatWorkerArgs { worker_instance_id, namespace }).await
}

/// Registers again if nobody knows the worker any more.
async fn stay(shared: &Shared, beaten: Beaten) -> Result<(), EngineError> {
    match beaten? {
        HeartbeatWorkerOutcome::Refreshed { .. } => Ok(()),
        HeartbeatWorkerOutcome::NotRegistered => presence::register(shared).await,
    }
}

/// A worker's place among those that beat together; given up with the value.
struct Place {
    shared: Arc<Shared>,
    key: CrewKey,
}

impl Place {
    fn take(shared: Arc<Shared>, every: Duration) -> Self {
        let key = (Arc::as_ptr(&shared.backend).cast::<()>().addr(), every);
        crews().entry(key).or_default().members.push(Arc::downgrade(&shared));
        Self { shared, key }
    }

    /// Beats at a moment, together with the others.
    async fn beat(&self, moment: Instant) -> Beaten {
        let beaten = self.round(moment).await;
        match beaten.get(&self.shared.instance_id) {
            Some(beaten) => beaten.clone(),
            // It joined too late, or whoever called was cut short.
            None => call(&self.shared).await,
        }
    }

    /// The round of a moment; whoever is first begins it.
    fn round(&self, moment: Instant) -> Round {
        let mut crews = crews();
        let crew = crews.entry(self.key).or_default();
        match &crew.round {
            Some((at, round)) if *at >= moment => round.clone(),
            _ => {
                let members = crew.members.iter().filter_map(Weak::upgrade).collect();
                // Apart from whoever is first, which may be stopped on the way.
                let calls = tokio::spawn(call_for_all(members));
                let round = async { Arc::new(calls.await.unwrap_or_default()) }.boxed().shared();
                crew.round = Some((moment, round.clone()));
                round
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut crews = crews();
        if let Some(crew) = crews.get_mut(&self.key) {
            crew.members.retain(|member| !std::ptr::eq(member.as_ptr(), Arc::as_ptr(&self.shared)));
            if crew.members.is_empty() {
                crews.remove(&self.key);
            }
        }
    }
}

async fn call_for_all(members: Vec<Arc<Shared>>) -> HashMap<WorkerInstanceId, Beaten> {
    let calls = members.iter().map(|member| async { (member.instance_id.clone(), call(member).await) });
    join_all(calls).await.into_iter().collect()
}
