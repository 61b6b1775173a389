//! Opening connections, all with the same settings.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ff_core::{EngineError, Result};
use rusqlite::config::DbConfig;
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rusqlite::{Connection, OpenFlags};

use crate::error::{Trouble, about, explain};
use crate::options::{Location, SqliteOptions, Synchronous};
use crate::schema;

/// Statements kept ready per connection.
const STATEMENTS: usize = 256;

/// Kibibytes of pages that the writer keeps in memory.
const WRITER_CACHE_KIB: u32 = 16_384;

/// Kibibytes of pages that each reader keeps in memory.
const READER_CACHE_KIB: u32 = 8_192;

/// Pages in the write-ahead log at which they are moved into the file.
const CHECKPOINT_PAGES: u32 = 4_000;

/// Counts the statements of connections, or does not.
#[derive(Clone, Debug)]
pub(crate) struct Statements(Option<Arc<AtomicU64>>);

impl Statements {
    pub(crate) fn new(counts: bool) -> Self {
        Self(counts.then(Arc::default))
    }

    /// Counts what a connection runs from now on.
    pub(crate) fn count(&self, db: &mut Connection) -> Result<()> {
        let Some(statements) = self.0.clone() else { return Ok(()) };
        let count = move |_: TraceEvent<'_>| {
            statements.fetch_add(1, Ordering::Relaxed);
        };
        db.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(count)).map_err(explain)
    }

    pub(crate) fn so_far(&self) -> Option<u64> {
        Some(self.0.as_ref()?.load(Ordering::Relaxed))
    }
}

/// The connection that writes; makes or updates the layout.
pub(crate) fn open_writer(options: &SqliteOptions) -> Result<Connection> {
    match &options.location {
        Location::Memory => prepare(Connection::open_in_memory().map_err(explain)?, options),
        Location::File(path) => open_file(path).and_then(|db| prepare(db, options)).map_err(|error| about(path, error)),
    }
}

fn open_file(path: &Path) -> Result<Connection> {
    refuse_unusable(path)?;
    let db = Connection::open_with_flags(path, OpenFlags::default()).map_err(explain)?;
    // SQLite opens what it may not write for reading. Trying it ourselves is no choice: to close a file ends the locks of every
    // other connection of this process.
    if db.is_readonly(rusqlite::MAIN_DB).map_err(explain)? {
        return Err(Trouble::ReadOnly("this user may not write it".to_owned()).into());
    }
    Ok(db)
}

fn prepare(mut db: Connection, options: &SqliteOptions) -> Result<Connection> {
    settle(&db, options.busy_timeout)?;
    // Before anything is set: settings change the file, and it may belong to somebody else.
    schema::check(&db)?;
    db.execute_batch(&settings(options)).map_err(explain)?;
    schema::prepare(&mut db)?;
    if options.log().is_some() && options.synchronous == Synchronous::Full {
        // Commits are flushed beside the writer, before anybody is answered, and moved into the file there, too.
        db.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0").map_err(explain)?;
    }
    Ok(db)
}

/// A connection that moves pages from the write-ahead log into the file.
pub(crate) fn open_checkpointer(path: &Path, busy_timeout: Duration) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(explain)?;
    settle(&db, busy_timeout)?;
    db.execute_batch("PRAGMA synchronous = NORMAL").map_err(explain)?;
    Ok(db)
}

/// A connection that only reads.
pub(crate) fn open_reader(path: &Path, busy_timeout: Duration) -> Result<Connection> {
    let db = open_copier(path, busy_timeout)?;
    db.execute_batch("PRAGMA query_only = ON").map_err(explain)?;
    Ok(db)
}

/// A connection that reads, and may write another file.
pub(crate) fn open_copier(path: &Path, busy_timeout: Duration) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(explain)?;
    settle(&db, busy_timeout)?;
    db.execute_batch(&format!("PRAGMA cache_size = -{READER_CACHE_KIB}")).map_err(explain)?;
    Ok(db)
}

/// Runs what waits for disks and locks on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (reply, answer) = tokio::sync::oneshot::channel();
    // A caller that gave up no longer listens.
    std::thread::spawn(move || reply.send(job()).is_ok());
    answer.await.map_err(|_| Trouble::Closed)?
}

fn settle(db: &Connection, busy_timeout: Duration) -> Result<()> {
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    // A plan that depends on values would be made anew for each of them.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(explain)?;
    db.busy_timeout(busy_timeout).map_err(explain)
}

/// The settings of the writer's connection, as SQL; a benchmark that wants to be fair uses the same.
#[must_use]
pub fn settings(options: &SqliteOptions) -> String {
    format!(
        "PRAGMA auto_vacuum = INCREMENTAL;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {};
         PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
         PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -{WRITER_CACHE_KIB};
         PRAGMA temp_store = MEMORY;
         PRAGMA trusted_schema = OFF;",
        options.synchronous.as_str()
    )
}

/// Says in words what SQLite would only say in codes.
fn refuse_unusable(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err(EngineError::invalid(
            "this names no file; give the path of one, or use SqliteOptions::memory for a database in memory",
        ));
    }
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(EngineError::invalid(format_args!(
            "this is a directory; give the path of a file in it, for example {}",
            path.join("flowfabric.db").display()
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(Trouble::CannotOpen(error.to_string()).into())
        }
        Err(_) if path.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !parent.exists()) => {
            Err(Trouble::CannotOpen("its directory does not exist".to_owned()).into())
        }
        _ => Ok(()),
    }
}
