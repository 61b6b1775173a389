//! What a store must do. Everything else is decided above it, once, for all stores.
//!
//! A store keeps [`Record`]s by [`Key`], keeps the index entries that records declare ([`Record::entries`]), appends events, and wakes
//! listeners. It knows no rule of the engine.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result, TimestampMs};

use crate::alarms::DueNews;
use crate::event::{Event, EventPage};
use crate::index::{Bounds, Index, Listed, Position, Topic};
use crate::key::Key;
use crate::records::Record;

/// One attempt at a commit: five verbs over the records of one partition.
///
/// Reads are repeatable and see this transaction's own writes. Nothing is visible to others before the commit; the commit happens
/// only if every record that was read, and the membership of every range that was read, is still as it was read. A record read
/// through [`Key::fence`] stays valid while ownership does not change, whatever else happens to its execution.
pub trait Tx: Send {
    /// The store's time, fetched with the first load; the same for the whole transaction, never earlier than an earlier
    /// transaction of this process saw.
    fn now(&self) -> TimestampMs;

    /// Loads records by key, in one round trip, in the order of `keys`; absent ones are `None`.
    fn load<'a>(&'a mut self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Option<Record>>>>;

    /// Loads the records that stand in an index with an owner ([`Index::owner`]), in position order, within bounds.
    /// The commit fails if an entry entered or left the owner's ranges since.
    fn range<'a>(&'a mut self, index: &'a Index, bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Record>>>;

    /// Records that stand in any of `indexes`, over all partitions, merged in position order, within bounds, as they were committed before
    /// this transaction. Only for an operation with [`Reach::Everywhere`]. The commit does not depend on the list: load what is decided
    /// upon.
    fn list<'a>(&'a mut self, indexes: &'a [Index], bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Listed>>>;

    /// Writes a record whole, with the index entries it declares, in place of what its key held.
    fn put_record(&mut self, record: Record);

    /// Removes a record and its index entries; a missing one is fine.
    fn delete(&mut self, key: Key);

    /// Appends an event to the partition's log, in order of the calls.
    fn emit(&mut self, event: Event);
}

/// An operation as a value, so that it can run again after a conflict. It must be a pure function of itself and of what it reads.
///
/// It and its answer borrow nothing: a store may run the operation on a thread of its own, and a caller who stops waiting does
/// not stop it there.
#[async_trait]
pub trait Op: Send + Sync + 'static {
    /// What the operation answers.
    type Out: Send + 'static;

    /// The one partition whose records it reads and writes.
    fn home(&self) -> Partition;

    /// How far it looks beyond its home.
    fn reach(&self) -> Reach {
        Reach::Home
    }

    /// The execution whose id was made for this operation alone: nothing of it can be stored yet, and the store need not look. Holds for a
    /// first run and after one that surely left nothing behind.
    fn newborn(&self) -> Option<ExecutionId> {
        None
    }

    /// Keys that are surely needed; the store loads them together with the time.
    fn prefetch(&self) -> Vec<Key> {
        Vec::new()
    }

    /// Reads, decides, writes. An `Err` rolls back; to write *and* refuse, `Out` is itself a `Result` and the inner one is `Err`.
    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out>;
}

/// What an operation may read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Records of its home.
    Home,
    /// Records of all partitions, and it may list over all of them; only on a store that
    /// [spans partitions](Store::spans_partitions).
    Everywhere,
}

/// A durable, transactional home for records.
pub trait Store: Send + Sync + 'static {
    /// The tag in handles and cursors of this store.
    const TAG: BackendTag;

    /// Runs an operation and commits it atomically with its index entries and events; answers after the commit is durable.
    /// On a conflict runs it again with jitter inside a budget of time and count, then answers `Contention(RetryExhausted)`.
    /// The operation is shared with the store, which may run it on another thread and keeps it for as long as it may run it again.
    fn transact<O: Op>(&self, op: Arc<O>) -> impl Future<Output = Result<O::Out>> + Send + '_;

    /// Whether a transaction can look at all partitions at the price of one, so that a hot operation can do in one transaction what
    /// otherwise takes reads before it, and nothing is gained by keeping executions of the same moment apart.
    fn spans_partitions(&self) -> bool {
        false
    }

    /// Committed records by key, from any partitions, absent ones `None`. Keys of one partition are read at one moment.
    fn read<'a>(&'a self, keys: &'a [Key]) -> impl Future<Output = Result<Vec<Option<Record>>>> + Send + 'a;

    /// Committed records that stand in any of `indexes`, over all partitions, merged in position order, within bounds. What
    /// lives in one partition is listed as it was at one moment. Costs in proportion to what is returned and to the number of indexes,
    /// never to what else is stored.
    fn list<'a>(
        &'a self,
        indexes: &'a [Index],
        bounds: &'a Bounds,
    ) -> impl Future<Output = Result<Vec<Listed>>> + Send + 'a;

    /// The keys of the records that stand in an index, in position order, within bounds. A record that does not decode is listed like
    /// any other, where a store can list without reading records; so that one damaged record hides no other.
    fn keys<'a>(
        &'a self,
        index: &'a Index,
        bounds: &'a Bounds,
    ) -> impl Future<Output = Result<Vec<(Position, Key)>>> + Send + 'a {
        async move {
            let listed = self.list(std::slice::from_ref(index), bounds).await?;
            Ok(listed.into_iter().map(|listed| (listed.position, listed.record.key())).collect())
        }
    }

    /// The lowest number above a given one at which an entry of any of `indexes` stands, over all partitions. A record that does not
    /// decode counts like any other.
    fn lowest<'a>(
        &'a self,
        indexes: &'a [Index],
        above: Option<i64>,
    ) -> impl Future<Output = Result<Option<i64>>> + Send + 'a {
        async move {
            let bounds = Bounds::first(1).after(above.map(Position::end_of));
            match self.list(indexes, &bounds).await {
                Ok(listed) => Ok(listed.first().map(|listed| listed.position.major)),
                Err(EngineError::Validation { .. }) => lowest_of_keys(self, indexes, &bounds).await,
                Err(error) => Err(error),
            }
        }
    }

    /// How many entries stand in an index, over all partitions.
    fn count<'a>(&'a self, index: &'a Index) -> impl Future<Output = Result<u64>> + Send + 'a;

    /// Events after a cursor, oldest first, from all partitions: none missing, none twice, those of one partition in commit order.
    /// The tail cursor yields no event and the position to continue from. A foreign or truncated cursor, or one ahead of
    /// the log, is `InvalidInput`; one whose
    /// events were trimmed is `CursorExpired`.
    fn events<'a>(
        &'a self,
        after: &'a EventCursor,
        limit: usize,
    ) -> impl Future<Output = Result<EventPage>> + Send + 'a;

    /// Drops events older than `before`, at most `limit`; says how many. A store that keeps several together drops them together, and may
    /// exceed a limit that is smaller than that.
    fn trim_events(&self, before: TimestampMs, limit: usize) -> impl Future<Output = Result<usize>> + Send + '_;

    /// Compares the stored index entries of a partition with those its records declare and repairs differences; says how many
    /// records it looked at and how many entries it repaired.
    fn reindex(&self, partition: Partition) -> impl Future<Output = Result<(u32, u32)>> + Send + '_;

    /// The same for somebody who goes round all partitions again and again. A store that cannot find the entries of one partition by
    /// themselves may leave those that no record declares alone, and remove them for all partitions at once when `is_first` says that the
    /// round begins.
    fn reindex_in_round(
        &self,
        partition: Partition,
        is_first: bool,
    ) -> impl Future<Output = Result<(u32, u32)>> + Send + '_ {
        let _ = is_first;
        self.reindex(partition)
    }

    /// A future that ends at the next commit that may concern the topic, counted from this call. Ending early is allowed, missing a
    /// commit is not.
    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()>;

    /// News of entries of [`Index::Due`], counted from this call: of every commit that adds one, as [`awaited_at`] says. Telling of an earlier
    /// time than there is allowed, missing an entry is not.
    ///
    /// [`awaited_at`]: crate::alarms::awaited_at
    fn listen_due(&self) -> DueNews;

    /// Tells those who wait in other processes of every commit that was answered before this call, where that is done apart from commits.
    /// For a process that is about to end; takes no longer than a few seconds.
    fn tell_others(&self) -> impl Future<Output = Result<()>> + Send + '_ {
        std::future::ready(Ok(()))
    }

    /// Housekeeping that nobody waits for, a bounded piece of it. Called now and then by the timers of every process.
    fn tidy(&self) -> impl Future<Output = Result<()>> + Send + '_ {
        std::future::ready(Ok(()))
    }

    /// A future that ends when the store's time reaches `at`.
    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()>;

    /// The store's time.
    fn now(&self) -> impl Future<Output = Result<TimestampMs>> + Send + '_;
}

/// As [`Store::lowest`], without a look at the records.
async fn lowest_of_keys<S: Store + ?Sized>(store: &S, indexes: &[Index], bounds: &Bounds) -> Result<Option<i64>> {
    let mut lowest = None;
    for index in indexes {
        let first = store.keys(index, bounds).await?.first().map(|(position, _)| position.major);
        lowest = lowest.into_iter().chain(first).min();
    }
    Ok(lowest)
}

/// A shared store is a store.
impl<S: Store> Store for Arc<S> {
    const TAG: BackendTag = S::TAG;

    fn transact<O: Op>(&self, op: Arc<O>) -> impl Future<Output = Result<O::Out>> + Send + '_ {
        S::transact(self, op)
    }

    fn spans_partitions(&self) -> bool {
        S::spans_partitions(self)
    }

    fn read<'a>(&'a self, keys: &'a [Key]) -> impl Future<Output = Result<Vec<Option<Record>>>> + Send + 'a {
        S::read(self, keys)
    }

    fn list<'a>(
        &'a self,
        indexes: &'a [Index],
        bounds: &'a Bounds,
    ) -> impl Future<Output = Result<Vec<Listed>>> + Send + 'a {
        S::list(self, indexes, bounds)
    }

    fn keys<'a>(
        &'a self,
        index: &'a Index,
        bounds: &'a Bounds,
    ) -> impl Future<Output = Result<Vec<(Position, Key)>>> + Send + 'a {
        S::keys(self, index, bounds)
    }

    fn lowest<'a>(
        &'a self,
        indexes: &'a [Index],
        above: Option<i64>,
    ) -> impl Future<Output = Result<Option<i64>>> + Send + 'a {
        S::lowest(self, indexes, above)
    }

    fn count<'a>(&'a self, index: &'a Index) -> impl Future<Output = Result<u64>> + Send + 'a {
        S::count(self, index)
    }

    fn events<'a>(
        &'a self,
        after: &'a EventCursor,
        limit: usize,
    ) -> impl Future<Output = Result<EventPage>> + Send + 'a {
        S::events(self, after, limit)
    }

    fn trim_events(&self, before: TimestampMs, limit: usize) -> impl Future<Output = Result<usize>> + Send + '_ {
        S::trim_events(self, before, limit)
    }

    fn reindex(&self, partition: Partition) -> impl Future<Output = Result<(u32, u32)>> + Send + '_ {
        S::reindex(self, partition)
    }

    fn reindex_in_round(
        &self,
        partition: Partition,
        is_first: bool,
    ) -> impl Future<Output = Result<(u32, u32)>> + Send + '_ {
        S::reindex_in_round(self, partition, is_first)
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        S::listen(self, topic)
    }

    fn listen_due(&self) -> DueNews {
        S::listen_due(self)
    }

    fn tell_others(&self) -> impl Future<Output = Result<()>> + Send + '_ {
        S::tell_others(self)
    }

    fn tidy(&self) -> impl Future<Output = Result<()>> + Send + '_ {
        S::tidy(self)
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        S::sleep_until(self, at)
    }

    fn now(&self) -> impl Future<Output = Result<TimestampMs>> + Send + '_ {
        S::now(self)
    }
}

/// A store whose whole content can be looked at: for checkers and comparisons, never for operations.
pub trait Inspect: Store {
    /// Every record, in any order.
    fn records(&self) -> impl Future<Output = Result<Vec<Record>>> + Send + '_;

    /// Every event that was not trimmed, those of one partition in commit order.
    fn event_log(&self) -> impl Future<Output = Result<Vec<Event>>> + Send + '_;
}

impl<S: Inspect> Inspect for Arc<S> {
    fn records(&self) -> impl Future<Output = Result<Vec<Record>>> + Send + '_ {
        S::records(self)
    }

    fn event_log(&self) -> impl Future<Output = Result<Vec<Event>>> + Send + '_ {
        S::event_log(self)
    }
}
