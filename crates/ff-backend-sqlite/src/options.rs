//! How a store is opened.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ff_engine::clock::{Clock, SystemClock};

use crate::connection::Statements;

/// Where the records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In a file, with two companions beside it while it is open.
    File(PathBuf),
    /// In memory; gone with the store.
    Memory,
}

/// When an answer is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// After the commit is on the disk.
    #[default]
    Full,
    /// After the commit is in the operating system's hands: the last ones may be lost when the machine loses power.
    Normal,
}

impl Synchronous {
    /// The word SQLite uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Normal => "NORMAL",
        }
    }
}

/// How a store is opened; start with [`SqliteOptions::file`].
#[derive(Clone)]
pub struct SqliteOptions {
    pub(crate) location: Location,
    pub(crate) synchronous: Synchronous,
    pub(crate) fast_paths: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) busy_timeout: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) young_max: usize,
    pub(crate) counts_statements: bool,
}

impl SqliteOptions {
    /// A file, made when it is missing; an empty one counts as missing.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Location::File(path.into()))
    }

    /// A private database in memory.
    #[must_use]
    pub fn memory() -> Self {
        Self::at(Location::Memory)
    }

    fn at(location: Location) -> Self {
        Self {
            location,
            synchronous: Synchronous::default(),
            fast_paths: true,
            clock: Arc::new(SystemClock::default()),
            busy_timeout: Duration::from_secs(10),
            poll_interval: Duration::from_millis(10),
            young_max: 1_024,
            counts_statements: false,
        }
    }

    /// When answers are given.
    #[must_use]
    pub const fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Whether hot operations take their short way; answers are the same either way.
    #[must_use]
    pub const fn fast_paths(mut self, on: bool) -> Self {
        self.fast_paths = on;
        self
    }

    /// Where time comes from.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How long to wait for another process that writes, before giving up.
    #[must_use]
    pub const fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How often at most to look for commits of other processes while somebody waits for news. Where the system tells of writes to a
    /// file there is a look only after one, elsewhere all the time.
    #[must_use]
    pub const fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// How many of the newest executions may wait in the journal before they come to their table; fewer if the journal is full of them.
    /// More of them make short executions cheaper, and opening the file, the first read after a pause and lists dearer.
    #[must_use]
    pub const fn young_max(mut self, executions: usize) -> Self {
        self.young_max = executions;
        self
    }

    /// Whether to count the statements, for [`SqliteStore::statements`](crate::SqliteStore::statements). It costs a little for each.
    #[must_use]
    pub const fn count_statements(mut self, on: bool) -> Self {
        self.counts_statements = on;
        self
    }
}

impl SqliteOptions {
    /// The write-ahead log. For a file that is there.
    pub(crate) fn log(&self) -> Option<PathBuf> {
        let mut log = self.database()?.into_os_string();
        log.push("-wal");
        Some(log.into())
    }

    /// The file itself: SQLite follows links and puts the log beside it.
    fn database(&self) -> Option<PathBuf> {
        match &self.location {
            Location::File(path) => Some(std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())),
            Location::Memory => None,
        }
    }

    /// The log that the store itself flushes, where answers wait for the disk. For a file that is there.
    pub(crate) fn log_to_flush(&self, statements: &Statements) -> Option<FlushedLog> {
        let path = self.log().filter(|_| self.synchronous == Synchronous::Full)?;
        let (database, statements) = (self.database()?, statements.clone());
        Some(FlushedLog { path, database, busy_timeout: self.busy_timeout, statements })
    }
}

/// A write-ahead log that the store itself flushes.
#[derive(Clone, Debug)]
pub(crate) struct FlushedLog {
    pub(crate) path: PathBuf,
    /// The file that its pages are moved into.
    pub(crate) database: PathBuf,
    pub(crate) busy_timeout: Duration,
    /// Where statements about it are counted.
    pub(crate) statements: Statements,
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("location", &self.location)
            .field("synchronous", &self.synchronous)
            .field("fast_paths", &self.fast_paths)
            .field("busy_timeout", &self.busy_timeout)
            .field("poll_interval", &self.poll_interval)
            .field("young_max", &self.young_max)
            .field("counts_statements", &self.counts_statements)
            .finish_non_exhaustive()
    }
}
