//! Heartbeats that come at the same moment, as those of the workers of one process do: one commit for all of them, and one look at what was
//! parked for want of such workers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ff_core::backend::workers::HeartbeatWorkerArgs;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};
use tokio::sync::oneshot;

use super::Heartbeat;
use crate::engine::Engine;
use crate::key::Key;
use crate::records::Worker;
use crate::store::{Op, Reach, Store, Tx};
use crate::timers::routes::open_route;

/// The worker as it is then; none if it is not known.
type Beaten = Result<Option<Worker>>;

/// A heartbeat that waits for its commit.
#[derive(Debug)]
struct Waiting {
    args: HeartbeatWorkerArgs,
    answer: oneshot::Sender<Beaten>,
}

/// The heartbeats of this process that wait.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    waiting: Mutex<Vec<Waiting>>,
    /// Whoever has it commits for all.
    turn: tokio::sync::Mutex<()>,
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refreshes a worker and frees what was parked for want of it, together with those that do the same at this moment.
pub(super) async fn beat<S: Store>(engine: &Engine<S>, args: HeartbeatWorkerArgs) -> Beaten {
    if !engine.store.spans_partitions() {
        return beat_alone(engine, args).await;
    }
    let (answer, mut answered) = oneshot::channel();
    engine.pulse.lock().push(Waiting { args: args.clone(), answer });
    let _turn = engine.pulse.turn.lock().await;
    if let Ok(beaten) = answered.try_recv() {
        return beaten;
    }
    // Those who were woken together with this one have their say before it begins.
    tokio::task::yield_now().await;
    let together = std::mem::take(&mut *engine.pulse.lock());
    beat_together(engine, together).await;
    match answered.try_recv() {
        Ok(beaten) => beaten,
        // Whoever was to commit for all has given up on the way.
        Err(_) => beat_alone(engine, args).await,
    }
}

async fn beat_alone<S: Store>(engine: &Engine<S>, args: HeartbeatWorkerArgs) -> Beaten {
    let beaten = engine.run(Heartbeat { args }).await?;
    if let Some(worker) = &beaten {
        free(engine, worker).await?;
    }
    Ok(beaten)
}

/// Answers all of them.
async fn beat_together<S: Store>(engine: &Engine<S>, together: Vec<Waiting>) {
    let (mut all, answers): (Vec<_>, Vec<_>) = together.into_iter().map(|it| (it.args, it.answer)).unzip();
    let beaten = match (all.pop(), all.is_empty()) {
        (None, _) => return,
        (Some(only), true) => vec![beat_alone(engine, only).await],
        (Some(last), false) => {
            all.push(last);
            match engine.run(Heartbeats(all.clone())).await {
                Ok(workers) => free_for_all(engine, workers).await,
                Err(error) => singly(engine, all, error).await,
            }
        }
    };
    for (answer, beaten) in answers.into_iter().zip(beaten) {
        // Nobody waits for an answer that it no longer wants.
        let _ = answer.send(beaten);
    }
}

/// After trouble: one by one, so that nobody pays for another's, unless all have the same.
async fn singly<S: Store>(engine: &Engine<S>, all: Vec<HeartbeatWorkerArgs>, trouble: EngineError) -> Vec<Beaten> {
    let mut beaten = Vec::with_capacity(all.len());
    for args in all {
        beaten.push(match &trouble {
            EngineError::Transport { .. } => Err(trouble.clone()),
            _ => beat_alone(engine, args).await,
        });
    }
    beaten
}

/// Those who offer the same look once.
async fn free_for_all<S: Store>(engine: &Engine<S>, workers: Vec<Option<Worker>>) -> Vec<Beaten> {
    let mut seen: Vec<(Worker, Result<()>)> = Vec::new();
    let mut beaten = Vec::with_capacity(workers.len());
    for worker in workers {
        let Some(worker) = worker else {
            beaten.push(Ok(None));
            continue;
        };
        let known = seen.iter().find(|(other, _)| offers_the_same(other, &worker)).map(|(_, freed)| freed.clone());
        let freed = match known {
            Some(freed) => freed,
            None => {
                let freed = free(engine, &worker).await;
                seen.push((worker.clone(), freed.clone()));
                freed
            }
        };
        beaten.push(freed.map(|()| Some(worker)));
    }
    beaten
}

fn offers_the_same(one: &Worker, other: &Worker) -> bool {
    let offer = |worker: &Worker| (worker.namespace.clone(), worker.lanes.clone(), worker.capabilities.clone());
    offer(one) == offer(other) && one.kinds == other.kinds
}

async fn free<S: Store>(engine: &Engine<S>, worker: &Worker) -> Result<()> {
    open_route(engine, &worker.namespace, &worker.lanes, &worker.capabilities, worker.kinds.as_ref()).await
}

/// Several at once, on a store that spans partitions.
struct Heartbeats(Vec<HeartbeatWorkerArgs>);

#[async_trait]
impl Op for Heartbeats {
    type Out = Vec<Option<Worker>>;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn reach(&self) -> Reach {
        Reach::Everywhere
    }

    fn prefetch(&self) -> Vec<Key> {
        self.0.iter().map(|args| Key::worker(args.namespace.clone(), args.worker_instance_id.clone())).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Vec<Option<Worker>>> {
        let mut workers = Vec::with_capacity(self.0.len());
        for args in &self.0 {
            workers.push(Heartbeat { args: args.clone() }.run(tx).await?);
        }
        Ok(workers)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::TimestampMs;
    use ff_core::backend::Workers;
    use ff_core::backend::workers::{HeartbeatWorkerOutcome, RegisterWorkerArgs};
    use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Settings;
    use crate::memory::MemoryStore;

    fn beat_of(name: &str) -> HeartbeatWorkerArgs {
        let worker_instance_id = WorkerInstanceId::new(name).unwrap();
        HeartbeatWorkerArgs { worker_instance_id, namespace: Namespace::new("acme").unwrap() }
    }

    async fn engine_with(clock: &ManualClock, names: &[&str]) -> Engine<MemoryStore> {
        let store = MemoryStore::new(Arc::new(clock.clone())).spanning_partitions();
        let engine = Engine::open(store, Settings::default()).await.unwrap();
        for name in names {
            let args = RegisterWorkerArgs {
                worker_id: WorkerId::new("w").unwrap(),
                worker_instance_id: WorkerInstanceId::new(*name).unwrap(),
                namespace: Namespace::new("acme").unwrap(),
                lanes: [LaneId::new("default").unwrap()].into(),
                capabilities: [].into(),
                kinds: None,
                liveness_ttl_ms: 60_000,
            };
            engine.register_worker(args).await.unwrap();
        }
        engine
    }

    #[tokio::test]
    async fn everybody_who_beats_at_the_same_moment_gets_an_answer_of_its_own() {
        let clock = ManualClock::at(TimestampMs(1_000));
        let engine = engine_with(&clock, &["a", "b", "c"]).await;
        clock.advance(500);
        let beats = ["a", "nobody", "b", "c"].map(|name| engine.heartbeat_worker(beat_of(name)));
        let answers: Vec<_> = join_all(beats).await.into_iter().map(Result::unwrap).collect();
        let refreshed = HeartbeatWorkerOutcome::Refreshed { next_expiry_ms: TimestampMs(61_500) };
        assert_eq!(answers, [refreshed, HeartbeatWorkerOutcome::NotRegistered, refreshed, refreshed]);
    }

    #[tokio::test]
    async fn one_that_gives_up_costs_nobody_else_a_heartbeat() {
        let clock = ManualClock::at(TimestampMs(1_000));
        let engine = engine_with(&clock, &["a", "b"]).await;
        let mut first = engine.heartbeat_worker(beat_of("a"));
        assert!(first.as_mut().now_or_never().is_none(), "it lets others have their say");
        let mut second = engine.heartbeat_worker(beat_of("b"));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(matches!(second.await, Ok(HeartbeatWorkerOutcome::Refreshed { .. })));
    }
}
