//! The store itself: writes go to the writer, reads to the readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::DueNews;
use ff_engine::event::{EventPage, numbered};
use ff_engine::index::{Bounds, Index, Listed, Position, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::store::{Op, Store};
use ff_engine::topics::Topics;

use crate::connection::{Statements, blocking, open_writer};
use crate::error::explain;
use crate::maintenance;
use crate::options::{Location, SqliteOptions};
use crate::readers::Readers;
use crate::tables;
use crate::writer::{Desk, Durability, StoreClock, Writer};
use crate::young::View;

/// Records in one SQLite file, or in memory.
pub struct SqliteStore {
    /// None for a database in memory, which only its one connection sees. Dropped before the writer: only a connection that may write
    /// tidies up when it is the last to go.
    readers: Option<Readers>,
    pub(crate) writer: Writer,
    topics: Arc<Topics>,
    clock: StoreClock,
    options: SqliteOptions,
    /// How many groups were committed.
    committed: Arc<AtomicU64>,
    /// How many of them are on the disk; none where nothing waits for that.
    durability: Option<Durability>,
    statements: Statements,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("options", &self.options).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a store; makes the file and its layout when they are missing, and brings an older layout up to date.
    ///
    /// # Errors
    /// One line that says what is wrong with the file and what to do: `InvalidInput` for one that is not ours or needs a newer program,
    /// `Corruption` for a damaged one, `Transport` for one that cannot be opened, written, or is locked.
    pub async fn open(options: SqliteOptions) -> Result<Self> {
        blocking(move || Self::open_blocking(options)).await
    }

    fn open_blocking(options: SqliteOptions) -> Result<Self> {
        let mut db = open_writer(&options)?;
        let statements = Statements::new(options.counts_statements);
        statements.count(&mut db)?;
        let topics = Arc::new(Topics::default());
        let clock = StoreClock::new(Arc::clone(&options.clock));
        let (committed, durability) = (Arc::new(AtomicU64::new(0)), Durability::new());
        let log = options.log_to_flush(&statements);
        let flushes = log.is_some();
        let desk = Desk::new(
            db,
            clock.clone(),
            Arc::clone(&topics),
            log.as_ref(),
            Arc::clone(&committed),
            &durability,
            options.young_max,
        )?;
        let writer = Writer::start(desk, Arc::clone(&topics), options.log().as_deref(), options.poll_interval)?;
        let readers = match &options.location {
            Location::File(path) => Some(Readers::start(path, options.busy_timeout, &statements)?),
            Location::Memory => None,
        };
        let durability = flushes.then_some(durability);
        Ok(Self { readers, writer, topics, clock, options, committed, durability, statements })
    }

    /// How many SQL statements were run since it was opened, by all of its connections; none if they are not counted.
    #[must_use]
    pub fn statements(&self) -> Option<u64> {
        self.statements.so_far()
    }

    /// How it was opened.
    #[must_use]
    pub const fn options(&self) -> &SqliteOptions {
        &self.options
    }

    /// Reads at one moment, beside the writer where that is possible.
    pub(crate) async fn reading<T: Send + 'static>(
        &self,
        job: impl FnOnce(View<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let Some(readers) = &self.readers else {
            return self.writer.alone(|desk| job(desk.view()?)).await;
        };
        let out = readers.read(job).await?;
        // What was read may have been committed a moment ago: nobody is told of it before it is on the disk.
        if let Some(durability) = &self.durability {
            durability.reached(self.committed.load(Ordering::Acquire)).await?;
        }
        Ok(out)
    }
}

impl Store for SqliteStore {
    const TAG: BackendTag = BackendTag::Sqlite;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        self.writer.transact(op).await
    }

    fn spans_partitions(&self) -> bool {
        self.options.fast_paths
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let keys = keys.to_vec();
        self.reading(move |view| keys.iter().map(|key| tables::load(view, key)).collect()).await
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let (indexes, bounds) = (indexes.to_vec(), bounds.clone());
        self.reading(move |view| tables::list_merged(view, &indexes, &bounds)).await
    }

    async fn keys(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
        let (index, bounds) = (index.clone(), bounds.clone());
        self.reading(move |view| tables::keys(view, &index, &bounds)).await
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        let index = index.clone();
        self.reading(move |view| tables::count(view, &index)).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        let after = after.clone();
        self.reading(move |view| {
            let cursor = |sequence| numbered::cursor(Self::TAG, sequence);
            let after = numbered::resume(Self::TAG, &after, tables::event::extent(view)?)?;
            let events = tables::event::after(view, after, limit)?;
            let next = cursor(events.last().map_or(after, |(sequence, _)| *sequence));
            Ok(EventPage { events: events.into_iter().map(|(at, event)| (cursor(at), event)).collect(), next })
        })
        .await
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        self.writer
            .alone(move |desk| desk.alone(|view| tables::event::trim(view.db, before, limit).map_err(explain)))
            .await
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        maintenance::reindex(self, partition).await
    }

    async fn reindex_in_round(&self, partition: Partition, is_first: bool) -> Result<(u32, u32)> {
        maintenance::reindex_in_round(self, partition, is_first).await
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        let (news, is_first) = self.topics.listen(topic);
        if is_first {
            self.writer.listen();
        }
        news
    }

    fn listen_due(&self) -> DueNews {
        let (news, is_first) = self.topics.listen_due();
        if is_first {
            self.writer.listen();
        }
        news
    }

    async fn tidy(&self) -> Result<()> {
        maintenance::tidy(self).await
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.clock.source().sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        Ok(self.clock.now())
    }
}
