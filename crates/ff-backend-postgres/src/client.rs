//! One connection of a pool.

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::ClientWrapper;
use futures_util::future::join3;
use postgres_types::ToSql;
use tokio_postgres::{Error, Row, ToStatement};

/// What our statements need, on any connection.
///
/// Plans are made while tables are empty and kept while they grow. Each statement has an index that fits, so whatever reads a whole
/// table, or a whole index for a join, is never right for long; and no statement is long enough to be worth compiling.
///
/// A transaction that waits for a lock, or is left open by a process that hangs, must not hold up the others for ever. How long a
/// statement may take is left to the administrator.
const SETTINGS: [(&str, &str); 8] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("lock_timeout", "'10s'"),
    ("idle_in_transaction_session_timeout", "'10s'"),
];

/// How a lone statement begins on a connection that others use, too. The settings travel with the beginning, so they cost the server a few
/// dozen microseconds and nobody a round trip.
static BEGIN_WITH_SETTINGS: LazyLock<String> =
    LazyLock::new(|| with_settings("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"));

/// Sets what our statements need, for the session (`SET`) or the transaction (`SET LOCAL`).
pub(crate) fn settings(set: &str) -> String {
    SETTINGS.map(|(name, value)| format!("{set} {name} = {value}")).join("; ")
}

fn with_settings(begin: &str) -> String {
    format!("{begin}; {}", settings("SET LOCAL"))
}

/// A connection of a pool, with a cache of prepared statements.
///
/// When it belongs to somebody else's pool, a transaction that is begun by `batch_execute`, and a prepared statement that `query` runs outside of
/// one, have the settings that our statements need; nothing is left of them afterwards. Everything else is as on any connection.
pub struct Client {
    connection: deadpool_postgres::Client,
    /// Whether others use it, too.
    is_borrowed: bool,
    /// Whether a transaction was begun; known of borrowed ones only.
    is_in_transaction: AtomicBool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("is_borrowed", &self.is_borrowed).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) const fn new(connection: deadpool_postgres::Client, is_borrowed: bool) -> Self {
        Self { connection, is_borrowed, is_in_transaction: AtomicBool::new(false) }
    }

    /// Runs statements without parameters.
    ///
    /// # Errors
    /// Whatever the server answers.
    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        if self.is_borrowed && sql.starts_with("BEGIN") {
            self.is_in_transaction.store(true, Ordering::Relaxed);
            return self.connection.batch_execute(&with_settings(sql)).await;
        }
        if matches!(sql, "COMMIT" | "ROLLBACK") {
            self.is_in_transaction.store(false, Ordering::Relaxed);
        }
        self.connection.batch_execute(sql).await
    }

    /// Runs one statement, in a transaction of its own where that is needed for settings.
    ///
    /// # Errors
    /// Whatever the server answers.
    pub async fn query<T>(&self, statement: &T, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error>
    where
        T: ?Sized + ToStatement,
    {
        let query = self.connection.query(statement, parameters);
        if !self.is_borrowed || self.is_in_transaction.load(Ordering::Relaxed) {
            return query.await;
        }
        // Sent in this order, all of them before the first answer: whoever stops waiting leaves no transaction behind.
        let (begun, rows, ended) =
            join3(self.connection.batch_execute(&BEGIN_WITH_SETTINGS), query, self.connection.batch_execute("COMMIT"))
                .await;
        begun?;
        let rows = rows?;
        ended?;
        Ok(rows)
    }

    /// Takes the connection out of its pool for good; dropped, it is closed.
    #[must_use]
    pub fn take(this: Self) -> ClientWrapper {
        deadpool_postgres::Client::take(this.connection)
    }
}

impl Deref for Client {
    type Target = deadpool_postgres::Client;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connection
    }
}
