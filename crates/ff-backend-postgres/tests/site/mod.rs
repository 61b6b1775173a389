//! Where several processes of a test find their store.

use std::sync::Arc;

use ff_backend_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use ff_core::Result;
use ff_engine::clock::Clock;
use ff_engine::{Engine, Settings};

/// A schema.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Site {
    pub(crate) url: String,
    pub(crate) schema: String,
}

impl ff_test_load::site::Site for Site {
    type Store = PostgresStore;

    async fn open(&self, clock: Option<Arc<dyn Clock>>) -> Result<PostgresBackend> {
        let options = PostgresOptions::new(&self.url)?.schema(&self.schema)?;
        let options = if let Some(clock) = clock { options.clock(clock) } else { options };
        Engine::open(PostgresStore::connect(options).await?, Settings::default()).await
    }
}
