//! What the harnesses of all stores share: an engine on a manual clock, and ways to break its store.

use std::sync::Arc;

use async_trait::async_trait;
use ff_core::TimestampMs;
use ff_core::backend::EngineBackend;
use ff_core::backend::layer::BoxFuture;
use ff_core::ids::ExecutionId;
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::entropy::SeededEntropy;
use ff_engine::key::Key;
use ff_engine::store::Store;
use ff_engine::{Engine, Settings};

use crate::harness::{Control, Damage, Instance};

/// When every test begins.
const START: TimestampMs = TimestampMs(1_700_000_000_000);

/// How to break a store: a damaged record, lost index entries.
pub struct Breakage<S> {
    /// Makes a record unreadable.
    pub damage: for<'a> fn(&'a S, Key) -> BoxFuture<'a, ()>,
    /// Removes the index entries of a record.
    pub lose_index_entries: for<'a> fn(&'a S, Key) -> BoxFuture<'a, ()>,
}

impl<S> Clone for Breakage<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Breakage<S> {}

/// The clock a fresh store of a test is given.
#[must_use]
pub fn clock() -> ManualClock {
    ManualClock::at(START)
}

/// A fresh engine on a fresh store. `kept` lives as long as the test does.
pub async fn instance<S: Store>(
    store: S,
    clock: ManualClock,
    breakage: Breakage<S>,
    kept: impl Send + Sync + 'static,
) -> Instance<Engine<S>> {
    let settings = Settings { entropy: Arc::new(SeededEntropy::new(7)), ..Settings::default() };
    let backend = Engine::open(store, settings).await.expect("a fresh store opens");
    Instance { backend, control: Arc::new(EngineControl { clock, breakage, _kept: Box::new(kept) }) }
}

struct EngineControl<S> {
    clock: ManualClock,
    breakage: Breakage<S>,
    _kept: Box<dyn std::any::Any + Send + Sync>,
}

fn engine<S: Store>(backend: &dyn EngineBackend) -> &Engine<S> {
    backend.as_any().downcast_ref().expect("an engine on the store of this harness")
}

#[async_trait]
impl<S: Store> Control for EngineControl<S> {
    fn now(&self) -> TimestampMs {
        self.clock.now()
    }

    fn advance(&self, ms: u64) {
        self.clock.advance(ms);
    }

    fn set_clock(&self, now: TimestampMs) {
        self.clock.set(now);
    }

    async fn run_due(&self, backend: &dyn EngineBackend) -> (usize, usize) {
        let engine = engine::<S>(backend);
        let (mut handled, mut failed) = (0, 0);
        loop {
            let report = engine.run_due(self.now(), 1000).await.expect("due work can be listed");
            handled += report.handled;
            failed += report.failed;
            if report.handled == 0 {
                return (handled, failed);
            }
        }
    }

    async fn damage(&self, backend: &dyn EngineBackend, what: Damage) {
        let key = match what {
            Damage::Execution(id) => Key::execution(id),
            Damage::Definition(id) => Key::definition(id),
            Damage::Flow(id) => Key::flow(Settings::default().counts.of_flow(id), id),
            Damage::Waitpoint(execution, id) => Key::waitpoint(execution.partition(), id),
        };
        (self.breakage.damage)(engine::<S>(backend).store(), key).await;
    }

    async fn lose_index_entries(&self, backend: &dyn EngineBackend, execution: ExecutionId) {
        (self.breakage.lose_index_entries)(engine::<S>(backend).store(), Key::execution(execution)).await;
    }
}
