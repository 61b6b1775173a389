//! A store that makes trouble: it interleaves, conflicts, fails before a commit, and loses the reply after one.
//!
//! It also writes down every transaction, so that the checker sees each commit by itself and in order.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::DueNews;
use ff_engine::event::{Event, EventPage};
use ff_engine::index::{Bounds, Index, Listed, Position, Topic};
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::store::{Op, Reach, Store, Tx};

use crate::trouble::{Commit, Trouble, broken, lock};

/// A store with trouble around it; clones share both.
pub(crate) struct TroubledStore<S> {
    pub(crate) store: Arc<S>,
    pub(crate) trouble: Arc<Trouble>,
}

impl<S> Clone for TroubledStore<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), trouble: Arc::clone(&self.trouble) }
    }
}

impl<S: Store> TroubledStore<S> {
    pub(crate) fn new(store: S, trouble: Trouble) -> Self {
        Self { store: Arc::new(store), trouble: Arc::new(trouble) }
    }

    /// Runs an operation, and lets the checker know what it commits.
    async fn commit<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        if self.trouble.is_scripted() {
            let out = self.store.transact(op).await;
            self.trouble.unwatched(out.is_ok());
            return out;
        }
        let watched = Watched::new(&op, &self.trouble, false);
        let out = self.store.transact(Arc::clone(&watched)).await;
        let seen = lock(&watched.seen).take();
        self.trouble.watched(seen.filter(|_| out.is_ok()));
        out
    }

    /// A read may fail, though not as often as a commit.
    async fn before_reading(&self, what: &'static str) -> Result<()> {
        self.trouble.maybe_pause().await;
        if self.trouble.strikes(self.trouble.odds().crash_before / 4) {
            return Err(broken(what));
        }
        Ok(())
    }
}

/// An operation that is watched while it runs.
struct Watched<O> {
    op: Arc<O>,
    trouble: Arc<Trouble>,
    /// Whether the run is to be thrown away.
    dropped: bool,
    seen: Mutex<Option<Commit>>,
}

impl<O> Watched<O> {
    fn new(op: &Arc<O>, trouble: &Arc<Trouble>, dropped: bool) -> Arc<Self> {
        Arc::new(Self { op: Arc::clone(op), trouble: Arc::clone(trouble), dropped, seen: Mutex::default() })
    }
}

#[async_trait]
impl<O: Op> Op for Watched<O> {
    type Out = O::Out;

    fn home(&self) -> Partition {
        self.op.home()
    }

    fn reach(&self) -> Reach {
        self.op.reach()
    }

    fn prefetch(&self) -> Vec<Key> {
        self.op.prefetch()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<O::Out> {
        let mut watch = Watch { tx, trouble: &self.trouble, changes: Vec::new(), events: Vec::new() };
        let out = self.op.run(&mut watch).await;
        let Watch { changes, events, tx, .. } = watch;
        let out = out?;
        self.trouble.maybe_pause().await;
        if self.dropped {
            return Err(broken("conflict"));
        }
        let home = (self.op.reach() == Reach::Home).then(|| self.op.home());
        *lock(&self.seen) = Some(Commit { home, now: tx.now(), changes: last_writes(changes), events });
        Ok(out)
    }
}

/// Several writes of one key in one transaction are one change.
fn last_writes(changes: Vec<(Key, Option<Record>)>) -> Vec<(Key, Option<Record>)> {
    changes.into_iter().collect::<std::collections::BTreeMap<_, _>>().into_iter().collect()
}

/// A transaction that notes what is written through it.
struct Watch<'t> {
    tx: &'t mut (dyn Tx + 't),
    trouble: &'t Trouble,
    changes: Vec<(Key, Option<Record>)>,
    events: Vec<Event>,
}

impl Tx for Watch<'_> {
    fn now(&self) -> TimestampMs {
        self.tx.now()
    }

    fn load<'a>(&'a mut self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Option<Record>>>> {
        Box::pin(async move {
            self.trouble.maybe_pause().await;
            self.tx.load(keys).await
        })
    }

    fn range<'a>(&'a mut self, index: &'a Index, bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(async move {
            self.trouble.maybe_pause().await;
            self.tx.range(index, bounds).await
        })
    }

    fn list<'a>(&'a mut self, indexes: &'a [Index], bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Listed>>> {
        Box::pin(async move {
            self.trouble.maybe_pause().await;
            self.tx.list(indexes, bounds).await
        })
    }

    fn put_record(&mut self, record: Record) {
        self.changes.push((record.key(), Some(record.clone())));
        self.tx.put_record(record);
    }

    fn delete(&mut self, key: Key) {
        self.changes.push((key.clone(), None));
        self.tx.delete(key);
    }

    fn emit(&mut self, event: Event) {
        self.events.push(event.clone());
        self.tx.emit(event);
    }
}

impl<S: Store> Store for TroubledStore<S> {
    const TAG: BackendTag = S::TAG;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        let trouble = &self.trouble;
        let _turn = trouble.turn().await;
        trouble.maybe_pause().await;
        if trouble.strikes(trouble.odds().crash_before) {
            return Err(broken("before the commit"));
        }
        if trouble.strikes(trouble.odds().conflict) {
            // Whatever the run answers, it is forgotten.
            let _ = self.store.transact(Watched::new(&op, trouble, true)).await;
        }
        let out = self.commit(op).await?;
        trouble.maybe_pause().await;
        if trouble.strikes(trouble.odds().crash_after) {
            return Err(broken("after the commit"));
        }
        Ok(out)
    }

    fn spans_partitions(&self) -> bool {
        self.store.spans_partitions()
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let _turn = self.trouble.turn().await;
        self.before_reading("while reading").await?;
        self.store.read(keys).await
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let _turn = self.trouble.turn().await;
        self.before_reading("while listing").await?;
        self.store.list(indexes, bounds).await
    }

    async fn keys(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
        let _turn = self.trouble.turn().await;
        self.before_reading("while listing").await?;
        self.store.keys(index, bounds).await
    }

    async fn lowest(&self, indexes: &[Index], above: Option<i64>) -> Result<Option<i64>> {
        let _turn = self.trouble.turn().await;
        self.store.lowest(indexes, above).await
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        let _turn = self.trouble.turn().await;
        self.store.count(index).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        let _turn = self.trouble.turn().await;
        self.store.events(after, limit).await
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        let _turn = self.trouble.turn().await;
        self.store.trim_events(before, limit).await
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        let _turn = self.trouble.turn().await;
        self.store.reindex(partition).await
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.store.listen(topic)
    }

    fn listen_due(&self) -> DueNews {
        self.store.listen_due()
    }

    async fn tell_others(&self) -> Result<()> {
        self.store.tell_others().await
    }

    async fn tidy(&self) -> Result<()> {
        let _turn = self.trouble.turn().await;
        self.store.tidy().await
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.store.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        let _turn = self.trouble.turn().await;
        self.store.now().await
    }
}
