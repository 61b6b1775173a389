//! Where several processes of a test find their store.

use std::sync::Arc;
use std::time::Duration;

use ff_backend_valkey::{ValkeyBackend, ValkeyOptions, ValkeyStore};
use ff_core::Result;
use ff_engine::clock::Clock;
use ff_engine::{Engine, Settings};

/// How long replicas may take to have what was written.
const REPLICAS_PATIENCE: Duration = Duration::from_secs(2);

/// A deployment.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Site {
    /// The server, or all nodes of a cluster.
    pub(crate) urls: Vec<String>,
    /// Over how many slots of a cluster a new deployment spreads.
    pub(crate) shards: Option<u16>,
    /// How many replicas have a commit before it is acknowledged.
    pub(crate) replicas: u32,
}

impl Site {
    /// A server.
    pub(crate) fn server(url: String) -> Self {
        Self { urls: vec![url], shards: None, replicas: 0 }
    }

    fn options(&self) -> Result<ValkeyOptions> {
        let mut options = ValkeyOptions::new(&self.urls[0])?.wait_for_replicas(self.replicas, REPLICAS_PATIENCE);
        for url in &self.urls[1..] {
            options = options.node(url)?;
        }
        Ok(if let Some(shards) = self.shards { options.shards(shards) } else { options })
    }
}

impl ff_test_load::site::Site for Site {
    type Store = ValkeyStore;

    async fn open(&self, clock: Option<Arc<dyn Clock>>) -> Result<ValkeyBackend> {
        let options = self.options()?;
        let options = if let Some(clock) = clock { options.clock(clock) } else { options };
        Engine::open(ValkeyStore::connect(options).await?, Settings::default()).await
    }
}
