//! Connections to the server, all with the same settings.

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::{
    Connect, Manager, ManagerConfig, PoolError, QueueMode, RecyclingMethod, Runtime, TimeoutType,
    tokio_postgres as driver,
};
use driver::{AsyncMessage, Config, Error};
use ff_core::{EngineError, Result};
use futures_util::stream::{self, Stream, StreamExt};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(crate) use crate::client::Client;
use crate::client::settings;
use crate::error::{Trouble, explain, explain_connect};
use crate::options::PostgresOptions;
use crate::writer::plan::COMMIT;

/// What a server says without being asked. Ends with the connection.
pub type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, Error>> + Send>>;

/// The oldest server that will do, as it counts its versions.
const SERVER_VERSION_MIN: u32 = 130_000;

/// How long to wait for a connection that somebody else uses.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a new connection may take, handshake and settings included.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Tells databases apart, those of different servers, too.
const WHICH_DATABASE: &str = "SELECT concat(oid, ' ', extract(epoch FROM pg_postmaster_start_time())) FROM pg_database \
                              WHERE datname = current_database()";

/// What every session of our own pool begins with, in one round trip. Set after the connection stands: poolers refuse parameters that they
/// do not know while it is made.
///
/// What a transaction checks must be what the locks before it waited for, so each statement sees what is committed when it begins, whatever
/// the database or the user has as default.
static SESSION: LazyLock<String> = LazyLock::new(|| {
    let defaults = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off";
    format!("{}; {defaults}", settings("SET"))
});

/// Connections to one server, shared by everybody in this process.
#[derive(Clone)]
pub struct Pool {
    connections: deadpool_postgres::Pool,
    /// Whether somebody else uses these connections, too.
    is_borrowed: bool,
    /// Where to connect; not always known of somebody else's pool.
    server: Option<Server>,
    target: String,
}

/// A connection outside of the pool that hears notifications.
pub struct Listener {
    /// Sends statements, `LISTEN` for one. They make way only while somebody asks for messages.
    pub client: driver::Client,
    /// What the server says.
    pub messages: Messages,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("target", &self.target).field("status", &self.connections.status()).finish()
    }
}

impl Pool {
    /// Connections as the options say; makes the first one, so that what is wrong with them shows at once.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do: `InvalidInput` for certificates that cannot be read and for a server that
    /// is too old, `Transport` for a server that cannot be reached or does not let us in.
    pub async fn connect(options: &PostgresOptions) -> Result<Self> {
        if !options.names_server() {
            return Err(EngineError::invalid("the options name no server. Make them with PostgresOptions::new"));
        }
        let server = Server::new(options)?;
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(server.config.clone(), server.clone(), config);
        let connections = deadpool_postgres::Pool::builder(manager)
            .max_size(options.connections)
            // Those used last know the statements, and the others may sleep.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT_TIMEOUT))
            .create_timeout(Some(CREATE_TIMEOUT))
            .build()
            .map_err(|error| Trouble::Other(error.to_string()))?;
        let pool = Self { connections, is_borrowed: false, server: Some(server), target: options.target() };
        pool.refuse_old_server().await?;
        Ok(pool)
    }

    /// The pool of somebody else, whose sessions stay as they are: other parts of the program use them, too, and what we set there would
    /// hold for them. What we need is set inside our transactions instead and ends with them; see [`Client`].
    ///
    /// How long to wait for a connection is that pool's affair; without a limit there we wait for ever. It needs a session per
    /// connection (no pooler in transaction mode), and recycling must not throw prepared statements away (`RecyclingMethod::Fast`,
    /// `Verified` and `Clean` do not). Of the options, the server is used to listen, if they name one.
    ///
    /// # Errors
    /// `InvalidInput` for a server that is too old, and for options that lead to another database than the pool does; `Transport` for a
    /// server that cannot be reached or does not let us in.
    pub async fn from_pool(connections: deadpool_postgres::Pool, options: &PostgresOptions) -> Result<Self> {
        let server = if options.names_server() { Some(Server::new(options)?) } else { None };
        let target = if server.is_some() { options.target() } else { "the given pool".to_owned() };
        let pool = Self { connections, is_borrowed: true, server, target };
        pool.refuse_old_server().await?;
        pool.refuse_another_database().await?;
        Ok(pool)
    }

    /// A connection, back in the pool when dropped.
    ///
    /// # Errors
    /// `Transport`: none became free in time, or the server cannot be reached or does not let us in.
    pub async fn get(&self) -> Result<Client> {
        let connection = self.connections.get().await.map_err(|error| self.explain(error))?;
        Ok(Client::new(connection, self.is_borrowed))
    }

    /// A new connection for `LISTEN`, outside of the pool. None when the pool belongs to somebody else and nothing else is known
    /// of the server: a pool does not tell how it connects, and hears no notifications itself.
    ///
    /// # Errors
    /// `Transport`: the server cannot be reached or does not let us in.
    pub async fn listener(&self) -> Result<Option<Listener>> {
        let Some(server) = &self.server else { return Ok(None) };
        let connecting = tokio::time::timeout(CREATE_TIMEOUT, server.config.connect(server.tls.clone()));
        let connected = connecting.await.map_err(|_| self.too_slow())?;
        let (client, connection) = connected.map_err(|error| explain_connect(error, &self.target))?;
        let mut connection = Some(connection);
        let messages = stream::poll_fn(move |context| {
            let Some(alive) = &mut connection else { return Poll::Ready(None) };
            let polled = alive.poll_message(context);
            if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
                // It must not be asked again.
                connection = None;
            }
            polled
        });
        Ok(Some(Listener { client, messages: messages.boxed() }))
    }

    /// Gives no more connections; those in use end when they come back.
    pub fn close(&self) {
        self.connections.close();
    }

    async fn refuse_old_server(&self) -> Result<()> {
        let row = self.get().await?.query_one("SHOW server_version_num", &[]).await.map_err(explain)?;
        let told: &str = row.try_get(0).map_err(explain)?;
        if told.parse().is_ok_and(|version: u32| version >= SERVER_VERSION_MIN) {
            return Ok(());
        }
        Err(EngineError::invalid(format_args!(
            "the server is Postgres {told}, which is too old: version {} or later is needed. Upgrade it, or use another one",
            SERVER_VERSION_MIN / 10_000
        )))
    }

    /// News of another database would be none.
    async fn refuse_another_database(&self) -> Result<()> {
        let Some(server) = self.server.clone() else { return Ok(()) };
        let connecting = tokio::time::timeout(CREATE_TIMEOUT, server.open());
        let (client, driven) =
            connecting.await.map_err(|_| self.too_slow())?.map_err(|error| explain_connect(error, &self.target))?;
        let named = client.query_one(WHICH_DATABASE, &[]).await;
        driven.abort();
        let pooled = self.get().await?.query_one(WHICH_DATABASE, &[]).await;
        let which = |row: driver::Row| row.try_get::<_, String>(0);
        if named.and_then(which).map_err(explain)? == pooled.and_then(which).map_err(explain)? {
            return Ok(());
        }
        Err(EngineError::invalid(format_args!(
            "the URL leads to another database than the pool: {}. Name the database of the pool, or use PostgresOptions::without_url",
            self.target
        )))
    }

    fn explain(&self, error: PoolError) -> EngineError {
        match error {
            PoolError::Timeout(TimeoutType::Wait) => {
                let max = self.connections.status().max_size;
                Trouble::NoneFree { max, waited: self.connections.timeouts().wait.unwrap_or(WAIT_TIMEOUT) }.into()
            }
            PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => self.too_slow().into(),
            PoolError::Backend(error) => explain_connect(error, &self.target),
            PoolError::Closed => Trouble::Closed.into(),
            other @ (PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_)) => {
                Trouble::Other(format!("{} gave no connection: {other}", self.target)).into()
            }
        }
    }

    fn too_slow(&self) -> Trouble {
        Trouble::Unreachable { target: self.target.clone(), told: "it did not answer in time".to_owned() }
    }
}

/// How to reach the server.
#[derive(Clone)]
struct Server {
    config: Config,
    tls: MakeRustlsConnect,
    /// The statement that takes parameters of our own types.
    commit: String,
}

impl Server {
    fn new(options: &PostgresOptions) -> Result<Self> {
        let mut config = options.server.clone();
        // A socket offers no encryption: to ask for it would be a round trip for nothing, to require it a refusal.
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        config.ssl_mode(if is_local { SslMode::Disable } else { options.tls.mode() });
        let commit = COMMIT.replace("{s}", &options.schema_name().quoted());
        Ok(Self { config, tls: options.tls.connector()?, commit })
    }

    async fn open(self) -> Result<(driver::Client, JoinHandle<()>), Error> {
        let (client, connection) = self.config.connect(self.tls).await?;
        let driven = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to postgres ended");
            }
        });
        match client.batch_execute(&SESSION).await {
            Ok(()) => {
                // The driver asks for each type once per connection: now, and not when somebody waits for a commit or when nothing should
                // be asked. There may be no such statement yet.
                let _ = client.prepare(&self.commit).await;
                Ok((client, driven))
            }
            Err(error) => {
                driven.abort();
                Err(error)
            }
        }
    }
}

impl Connect for Server {
    fn connect(
        &self,
        _config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(driver::Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(self.clone().open())
    }
}
