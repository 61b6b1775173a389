//! FlowFabric in one import: an embedded engine with its timers, and the workers and clients of [`ff_sdk`].
//!
//! ```
//! # async fn demo() -> flowfabric::Result<()> {
//! use flowfabric::{Context, FlowFabric, Task, TaskResult};
//!
//! async fn greet(_context: Context, name: String) -> TaskResult<String> {
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! let fabric = FlowFabric::open("sqlite:flowfabric.db").await?;
//! let worker = fabric.worker().on("greet", greet).start().await?;
//! let run = fabric.client().submit(Task::new("greet", "world")).await?;
//! let greeting: String = run.result().await?;
//! worker.stop().await;
//! fabric.close().await?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use ff_backend_sqlite::{SqliteBackend, SqliteOptions, SqliteStore};
use ff_core::backend::signals::SeedWaitpointHmacSecretArgs;
use ff_core::backend::{Connection, EngineBackend, Signals};
use ff_core::error::{EngineError, ValidationKind};
use ff_engine::{Engine, Settings, TimerOptions, Timers};

pub use ff_core as core;
pub use ff_sdk::*;

/// Names the secret that signs tokens until an operator rotates it.
const FIRST_SECRET: &str = "first";

/// How long closing waits for calls that are under way.
const CLOSING: Duration = Duration::from_secs(5);

/// An engine inside this process: a store, its timers, and the way to workers and clients.
pub struct FlowFabric {
    backend: Arc<SqliteBackend>,
    timers: Timers,
    client: Client,
}

impl FlowFabric {
    /// Opens a store, creating it when it is not there, and runs its timers: `sqlite:<path>`, or `sqlite::memory:` for one that is
    /// gone with the process. Several processes may open one file.
    ///
    /// # Errors
    /// When the address is not understood, or the store cannot be opened.
    pub async fn open(address: &str) -> Result<Self> {
        let options = match address.strip_prefix("sqlite:") {
            Some(":memory:") => SqliteOptions::memory(),
            Some(path) if !path.is_empty() => SqliteOptions::file(path),
            _ => {
                let known = "sqlite:<path> or sqlite::memory:";
                return Err(Error::Setup(format!("cannot open {address:?}: expected {known}")));
            }
        };
        let store = SqliteStore::open(options).await?;
        let backend = Arc::new(Engine::open(store, Settings::default()).await?);
        seed_secret(&*backend).await?;
        let client = Client::new(Arc::clone(&backend) as Arc<dyn EngineBackend>, DEFAULT_NAMESPACE)?;
        let timers = Timers::start(Arc::clone(&backend), TimerOptions::default());
        Ok(Self { backend, timers, client })
    }

    /// The engine, with every operation.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn EngineBackend> {
        Arc::clone(&self.backend) as Arc<dyn EngineBackend>
    }

    /// The timers, for their health.
    #[must_use]
    pub const fn timers(&self) -> &Timers {
        &self.timers
    }

    /// A client for the default namespace.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sets a worker up.
    pub fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.backend())
    }

    /// Stops the timers and lets calls end that are under way. Stop workers before.
    ///
    /// # Errors
    /// When calls do not end in time, or other processes cannot be told of the last ones.
    pub async fn close(self) -> Result<()> {
        self.timers.stop().await;
        Ok(self.backend.shutdown_prepare(CLOSING).await?)
    }
}

/// Makes a secret for tokens, unless there is one.
async fn seed_secret(backend: &dyn Signals) -> Result<()> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| Error::Setup(format!("the system gives no randomness: {error}")))?;
    let args = SeedWaitpointHmacSecretArgs { kid: FIRST_SECRET.to_owned(), secret_hex: hex::encode(secret).into() };
    match backend.seed_waitpoint_hmac_secret(args).await {
        // Another one signs: it was rotated.
        Err(EngineError::Validation { kind: ValidationKind::InvalidInput, .. }) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}
