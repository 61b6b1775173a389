//! Opening connections, all with the same settings.

use std::path::Path;
use std::time::Duration;

use ff_core::{EngineError, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{Trouble, explain};
use crate::options::{Location, SqliteOptions};
use crate::schema;

/// Statements kept ready per connection.
const STATEMENTS: usize = 256;

/// Kibibytes of pages that the writer keeps in memory.
const WRITER_CACHE_KIB: u32 = 65_536;

/// Kibibytes of pages that each reader keeps in memory.
const READER_CACHE_KIB: u32 = 8_192;

/// Pages in the write-ahead log at which they are moved into the file.
const CHECKPOINT_PAGES: u32 = 4_000;

/// The connection that writes; makes or updates the layout.
pub(crate) fn open_writer(options: &SqliteOptions) -> Result<Connection> {
    let mut db = match &options.location {
        Location::Memory => Connection::open_in_memory().map_err(explain)?,
        Location::File(path) => {
            refuse_unusable(path)?;
            Connection::open_with_flags(path, OpenFlags::default()).map_err(explain)?
        }
    };
    settle(&db, options.busy_timeout)?;
    // Settings stay in the file, so the file must be ours.
    schema::recognize(&db)?;
    db.execute_batch(&settings(options)).map_err(explain)?;
    schema::prepare(&mut db)?;
    if options.log_to_flush().is_some() {
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
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(EngineError::invalid(format_args!(
            "{shown} is a directory; give the path of a file in it, for example {}",
            path.join("flowfabric.db").display()
        ))),
        Ok(found) if found.permissions().readonly() => Err(Trouble::ReadOnly(format!("{shown} is read-only")).into()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(Trouble::CannotOpen(format!("{shown}: {error}")).into())
        }
        Err(_) if path.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !parent.exists()) => {
            Err(Trouble::CannotOpen(format!("the directory of {shown} does not exist")).into())
        }
        _ => Ok(()),
    }
}
