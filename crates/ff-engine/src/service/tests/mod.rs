//! The timers of one or several processes, on a clock that the tests own.

mod due;
mod odd;
mod trouble;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use ff_core::TimestampMs;
use ff_core::backend::Ingress;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::{ExecutionId, LaneId};
use uuid::Uuid;

use super::{TimerHealth, TimerOptions, Timers};
use crate::clock::ManualClock;
use crate::engine::{Engine, Settings};
use crate::key::Key;
use crate::memory::MemoryStore;
use crate::records::Execution;
use crate::store::Store;
use crate::verbs::read_one;

const START: TimestampMs = TimestampMs(1_000_000);

/// Nothing but news and due times wakes timers with these.
fn quiet() -> TimerOptions {
    let never = Duration::from_secs(1_000_000_000);
    TimerOptions {
        sweep_every: never,
        cleanup_every: never,
        trim_events_every: never,
        tidy_every: never,
        reconcile_every: never,
        concurrency: 16,
    }
}

type Shared = Arc<MemoryStore>;

fn memory(clock: &ManualClock) -> Shared {
    Arc::new(MemoryStore::new(Arc::new(clock.clone())))
}

async fn open<S: Store>(store: S) -> Arc<Engine<S>> {
    Arc::new(Engine::open(store, Settings::default()).await.unwrap())
}

async fn on_memory() -> (ManualClock, Arc<Engine<Shared>>) {
    let clock = ManualClock::at(START);
    let engine = open(memory(&clock)).await;
    (clock, engine)
}

fn lane() -> LaneId {
    LaneId::new("default").unwrap()
}

fn id(n: u64) -> ExecutionId {
    ExecutionId::new(u16::try_from(n % 256).unwrap(), Uuid::from_u128(u128::from(n)))
}

async fn delayed<S: Store>(engine: &Engine<S>, n: u64, until: TimestampMs) -> ExecutionId {
    let args = CreateExecutionArgs::new(id(n), "acme".parse().unwrap(), lane(), "task");
    engine.create_execution(CreateExecutionArgs { delay_until: Some(until), ..args }).await.unwrap();
    id(n)
}

async fn execution<S: Store>(engine: &Engine<S>, id: ExecutionId) -> Option<Execution> {
    read_one(&engine.store, Key::execution(id)).await.unwrap()
}

async fn is_eligible<S: Store>(engine: &Engine<S>, id: ExecutionId) -> bool {
    execution(engine, id).await.is_some_and(|execution| execution.is_eligible())
}

/// Lets the timers run until something holds; real time is only an emergency brake.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let brake = std::time::Instant::now();
    while !holds().await {
        assert!(brake.elapsed() < Duration::from_secs(60), "in vain: {what}");
        tokio::task::yield_now().await;
    }
}

async fn until_health(timers: &Timers, what: &str, holds: impl Fn(&TimerHealth) -> bool) {
    until(what, async || holds(&timers.health())).await;
}

/// Waits until the timers sleep: they have looked, and everything they could do is done.
async fn until_asleep(timers: &Timers) {
    until_health(timers, "a first pass", |health| health.due.last_pass.is_some()).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
