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

mod address;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use ff_backend_postgres::{PostgresBackend, PostgresStore};
use ff_backend_sqlite::SqliteStore;
use ff_backend_valkey::ValkeyStore;
use ff_core::backend::signals::SeedWaitpointHmacSecretArgs;
use ff_core::backend::{EngineBackend, Signals};
use ff_core::error::{EngineError, ValidationKind};
use ff_engine::store::Store;
use ff_engine::{Engine, Settings, TimerOptions, Timers};

use address::Address;

pub use ff_backend_postgres as postgres;
pub use ff_backend_sqlite as sqlite;
pub use ff_backend_valkey as valkey;
pub use ff_core as core;
pub use ff_sdk::*;
pub use transaction::SubmitIn;

/// Names the secret that signs tokens until an operator rotates it.
const FIRST_SECRET: &str = "first";

/// How long closing waits for calls that are under way.
const CLOSING: Duration = Duration::from_secs(5);

/// An engine inside this process: a store, its timers, and the way to workers and clients.
pub struct FlowFabric {
    backend: Arc<dyn EngineBackend>,
    timers: Timers,
    client: Client,
}

impl FlowFabric {
    /// Opens a store, creating it when it is not there, and runs its timers:
    ///
    /// - `sqlite:<path>`, which several processes may open, or `sqlite::memory:` for one that is gone with the process;
    /// - `postgres://user:password@host:5432/database`, or `postgresql:`, with the parameters that Postgres users know and `schema` for the schema
    ///   (`flowfabric` unless named): `?sslmode=verify-full&schema=jobs`. See [`postgres::PostgresOptions::new`];
    /// - `redis://user:password@host:6379`, or `rediss:`, `valkey:` and `valkeys:`, with `?cluster=true` for a cluster and `prefix` for what keys
    ///   begin with (`ff` unless named). See [`valkey::ValkeyOptions::new`].
    ///
    /// # Errors
    /// When the address is not understood, or the store cannot be opened. A password in the address is never repeated.
    pub async fn open(address: &str) -> Result<Self> {
        match Address::parse(address)? {
            Address::Sqlite(options) => Self::on(SqliteStore::open(options).await?).await,
            Address::Postgres(options) => Self::on(PostgresStore::connect(*options).await?).await,
            Address::Valkey(options) => Self::on(ValkeyStore::connect(*options).await?).await,
        }
    }

    /// An engine on a store that was opened before, with its timers: for options that an address cannot tell, or for
    /// [`PostgresStore::from_pool`].
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn on<S: Store>(store: S) -> Result<Self> {
        let engine = Arc::new(Engine::open(store, Settings::default()).await?);
        seed_secret(&*engine).await?;
        let backend = Arc::clone(&engine) as Arc<dyn EngineBackend>;
        let client = Client::new(Arc::clone(&backend), DEFAULT_NAMESPACE)?;
        let timers = Timers::start(engine, TimerOptions::default());
        Ok(Self { backend, timers, client })
    }

    /// The engine, with every operation.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn EngineBackend> {
        Arc::clone(&self.backend)
    }

    /// The engine on Postgres, for [`postgres::CreateIn`]; nothing on any other store.
    #[must_use]
    pub fn postgres(&self) -> Option<&PostgresBackend> {
        self.backend.as_any().downcast_ref()
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
