//! The suite through all layers, on the model store and on SQLite: whatever a backend does, it does inside layers.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ff_backend_sqlite::{SqliteOptions, SqliteStore};
use ff_conformance::engines::{Breakage, clock, instance};
use ff_conformance::memory::MemoryHarness;
use ff_conformance::{Harness, Instance, run_trials, trials};
use ff_core::backend::EngineBackend;
use ff_sdk::layers::{self, CircuitBreaker, Class, Rate, RateLimit, Retry};

/// Every class has a limit, which no case reaches.
fn limits() -> RateLimit {
    let classes = [Class::CLAIMS, Class::SUBMISSIONS, Class::OWNERSHIP, Class::READS, Class::WRITES, Class::UPKEEP];
    let rate = Rate::per_second(1_000_000);
    classes.into_iter().fold(RateLimit::new().wait_at_most(Duration::from_secs(1)), |all, class| all.limit(class, rate))
}

fn layered(instance: Instance<impl EngineBackend>) -> Instance<Arc<dyn EngineBackend>> {
    let backend = layers::stack(Arc::new(instance.backend))
        .tracing()
        .metrics()
        .rate_limit(limits())
        .circuit_breaker(CircuitBreaker::new())
        .retry(Retry::new())
        .build();
    Instance { backend, control: instance.control }
}

struct LayeredMemory;

#[async_trait]
impl Harness for LayeredMemory {
    type Backend = Arc<dyn EngineBackend>;

    async fn open(&self) -> Instance<Self::Backend> {
        layered(MemoryHarness.open().await)
    }
}

struct LayeredSqlite;

const BREAKAGE: Breakage<SqliteStore> = Breakage {
    damage: |store, key| Box::pin(async move { store.damage(key).await.expect("the record can be damaged") }),
    lose_index_entries: |store, key| {
        Box::pin(async move { store.lose_index_entries(key).await.expect("the entries can be lost") })
    },
};

#[async_trait]
impl Harness for LayeredSqlite {
    type Backend = Arc<dyn EngineBackend>;

    async fn open(&self) -> Instance<Self::Backend> {
        let clock = clock();
        let options = SqliteOptions::memory().clock(Arc::new(clock.clone()));
        let store = SqliteStore::open(options).await.expect("a fresh store opens");
        layered(instance(store, clock, BREAKAGE, ()).await)
    }
}

fn main() -> ExitCode {
    let mut all = trials("memory::", LayeredMemory);
    all.extend(trials("sqlite::", LayeredSqlite));
    run_trials(all)
}
