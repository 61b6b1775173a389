//! The harness of the model store.

use std::sync::Arc;

use async_trait::async_trait;
use ff_core::TimestampMs;
use ff_core::backend::EngineBackend;
use ff_core::ids::ExecutionId;
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::entropy::SeededEntropy;
use ff_engine::key::Key;
use ff_engine::memory::MemoryStore;
use ff_engine::{Engine, Settings};

use crate::harness::{Control, Damage, Harness, Instance};

/// When every test begins.
const START: TimestampMs = TimestampMs(1_700_000_000_000);

/// Engines on the memory store, each with a clock of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryHarness;

struct MemoryControl {
    clock: ManualClock,
}

fn engine(backend: &dyn EngineBackend) -> &Engine<MemoryStore> {
    backend.as_any().downcast_ref().expect("an engine on the memory store")
}

#[async_trait]
impl Harness for MemoryHarness {
    type Backend = Engine<MemoryStore>;

    async fn open(&self) -> Instance<Self::Backend> {
        let clock = ManualClock::at(START);
        let store = MemoryStore::new(Arc::new(clock.clone()));
        let settings = Settings { entropy: Arc::new(SeededEntropy::new(7)), ..Settings::default() };
        let backend = Engine::open(store, settings).await.expect("a fresh store opens");
        Instance { backend, control: Arc::new(MemoryControl { clock }) }
    }
}

#[async_trait]
impl Control for MemoryControl {
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
        let engine = engine(backend);
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
        let engine = engine(backend);
        engine.store().damage(match what {
            Damage::Execution(id) => Key::execution(id),
            Damage::Definition(id) => Key::definition(id),
            Damage::Flow(id) => Key::flow(Settings::default().counts.of_flow(id), id),
            Damage::Waitpoint(execution, id) => Key::waitpoint(execution.partition(), id),
        });
    }

    async fn lose_index_entries(&self, backend: &dyn EngineBackend, execution: ExecutionId) {
        engine(backend).store().lose_index_entries(&Key::execution(execution));
    }
}
