//! Moving committed pages from the write-ahead log into the file, beside the writer.
//!
//! The log can start over only when everything in it has been moved and nothing is added meanwhile. So this thread moves most of it, and when the
//! log has grown long the writer moves the little that is left between two groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use ff_core::Result;
use rusqlite::Connection;

use crate::connection::open_checkpointer;
use crate::error::{Trouble, explain};
use crate::options::FlushedLog;

/// Pages that are worth moving.
const WORTHWHILE: i64 = 2_000;

/// Pages after which the log is to start over.
const LONG: i64 = 4_000;

/// Commits between two looks at the log.
const COMMITS_BETWEEN_LOOKS: u32 = 8;

/// The way to the thread; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Checkpointer {
    looks: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    is_long: Arc<AtomicBool>,
}

/// Tells the thread now and then that the log has grown.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    looks: Sender<()>,
    commits: u32,
}

impl Growth {
    /// With nobody to tell.
    #[cfg(test)]
    pub(super) fn unheard() -> Self {
        Self { looks: crossbeam_channel::bounded(1).0, commits: 0 }
    }

    /// A commit was added to the log.
    pub(super) fn note(&mut self) {
        self.commits += 1;
        if self.commits.is_multiple_of(COMMITS_BETWEEN_LOOKS) {
            match self.looks.try_send(()) {
                // It is about to look anyway, or ended with the store.
                Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
            }
        }
    }
}

impl Checkpointer {
    pub(super) fn start(log: &FlushedLog) -> Result<(Self, Growth)> {
        let (looks, asked) = crossbeam_channel::bounded(1);
        let is_long = Arc::<AtomicBool>::default();
        let mut db = open_checkpointer(&log.database, log.busy_timeout)?;
        log.statements.count(&mut db)?;
        let thread = std::thread::Builder::new()
            .name("ff-sqlite-move".into())
            .spawn({
                let is_long = Arc::clone(&is_long);
                move || serve(&db, &asked, &is_long)
            })
            .map_err(|error| Trouble::Other(format!("the checkpointer's thread does not start: {error}")))?;
        let growth = Growth { looks: looks.clone(), commits: 0 };
        Ok((Self { looks: Some(looks), thread: Some(thread), is_long }, growth))
    }

    /// Moves what is left, if the log has grown long. For the writer, between two groups.
    pub(super) fn finish(&self, db: &Connection) {
        if self.is_long.swap(false, Ordering::AcqRel) {
            // A log that stays long is asked about again.
            let _ = checkpoint(db, "PASSIVE");
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.looks.take();
        if let Some(thread) = self.thread.take() {
            // Nobody waits for it.
            let _ = thread.join();
        }
    }
}

fn serve(db: &Connection, asked: &Receiver<()>, is_long: &AtomicBool) {
    while asked.recv().is_ok() {
        // What fails here is tried again after the next commits; the log only grows meanwhile.
        let Ok((log, moved)) = checkpoint(db, "NOOP") else { continue };
        if log - moved < WORTHWHILE {
            continue;
        }
        if let Ok((log, _)) = checkpoint(db, "PASSIVE")
            && log >= LONG
        {
            is_long.store(true, Ordering::Release);
        }
    }
}

/// Pages in the log, and how many of them are in the file.
fn checkpoint(db: &Connection, mode: &str) -> Result<(i64, i64)> {
    db.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))
        .and_then(|mut statement| statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))))
        .map_err(explain)
}
