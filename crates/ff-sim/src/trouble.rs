//! A store that makes trouble: it interleaves, conflicts, fails before a commit, and loses the reply after one.
//!
//! It also writes down every transaction, so that the checker sees each commit by itself and in order.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::event::{Event, EventPage};
use ff_engine::index::{Bounds, Index, Listed, Topic};
use ff_engine::key::Key;
use ff_engine::memory::MemoryStore;
use ff_engine::records::Record;
use ff_engine::store::{Op, Store, Tx};

use crate::rng::Rng;

/// How much trouble a seed makes, each in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Odds {
    /// A transaction lets others run, at each of its steps.
    pub(crate) pause: u32,
    /// A transaction is run, dropped and run again.
    pub(crate) conflict: u32,
    /// A transaction fails before it commits.
    pub(crate) crash_before: u32,
    /// A transaction commits and its reply is lost.
    pub(crate) crash_after: u32,
}

/// One finished transaction.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub(crate) home: Partition,
    pub(crate) now: TimestampMs,
    /// In the order of the keys; `None` means deleted.
    pub(crate) changes: Vec<(Key, Option<Record>)>,
    pub(crate) events: Vec<Event>,
}

/// The model store with trouble around it; clones share it.
#[derive(Clone)]
pub(crate) struct TroubledStore(Arc<Shared>);

struct Shared {
    store: MemoryStore,
    odds: Odds,
    enabled: AtomicBool,
    rng: Mutex<Rng>,
    log: Mutex<Vec<Commit>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection broke.
fn broken(when: &'static str) -> EngineError {
    EngineError::Transport { backend: "simulation", retryable: true, source: Arc::new(std::io::Error::other(when)) }
}

/// Lets others run once.
struct Pause(bool);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl TroubledStore {
    pub(crate) fn new(store: MemoryStore, odds: Odds, seed: u64) -> Self {
        Self(Arc::new(Shared {
            store,
            odds,
            enabled: AtomicBool::new(true),
            rng: Mutex::new(Rng::new(seed, 0x7a0b)),
            log: Mutex::default(),
        }))
    }

    /// The store underneath.
    pub(crate) fn calm(&self) -> &MemoryStore {
        &self.0.store
    }

    /// Ends all trouble.
    pub(crate) fn calm_down(&self) {
        self.0.enabled.store(false, Ordering::Relaxed);
    }

    /// Transactions that finished since the last question.
    pub(crate) fn take_log(&self) -> Vec<Commit> {
        std::mem::take(&mut lock(&self.0.log))
    }

    /// Whether trouble of this likelihood strikes now.
    pub(crate) fn strikes(&self, permille: u32) -> bool {
        self.0.enabled.load(Ordering::Relaxed) && permille > 0 && lock(&self.0.rng).rarely(permille)
    }

    fn odds(&self) -> Odds {
        self.0.odds
    }

    async fn maybe_pause(&self) {
        if self.strikes(self.odds().pause) {
            Pause(false).await;
        }
    }
}

/// An operation that is watched while it runs.
struct Watched<O> {
    op: Arc<O>,
    store: TroubledStore,
    /// Whether the run is to be thrown away.
    dropped: bool,
    seen: Mutex<Option<Commit>>,
}

impl<O> Watched<O> {
    fn new(op: &Arc<O>, store: &TroubledStore, dropped: bool) -> Arc<Self> {
        Arc::new(Self { op: Arc::clone(op), store: store.clone(), dropped, seen: Mutex::default() })
    }
}

#[async_trait]
impl<O: Op> Op for Watched<O> {
    type Out = O::Out;

    fn home(&self) -> Partition {
        self.op.home()
    }

    fn prefetch(&self) -> Vec<Key> {
        self.op.prefetch()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<O::Out> {
        let mut watch = Watch { tx, store: &self.store, changes: Vec::new(), events: Vec::new() };
        let out = self.op.run(&mut watch).await;
        let Watch { changes, events, tx, .. } = watch;
        let out = out?;
        self.store.maybe_pause().await;
        if self.dropped {
            return Err(broken("conflict"));
        }
        *lock(&self.seen) = Some(Commit { home: self.op.home(), now: tx.now(), changes: last_writes(changes), events });
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
    store: &'t TroubledStore,
    changes: Vec<(Key, Option<Record>)>,
    events: Vec<Event>,
}

impl Tx for Watch<'_> {
    fn now(&self) -> TimestampMs {
        self.tx.now()
    }

    fn load<'a>(&'a mut self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Option<Record>>>> {
        Box::pin(async move {
            self.store.maybe_pause().await;
            self.tx.load(keys).await
        })
    }

    fn range<'a>(&'a mut self, index: &'a Index, bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(async move {
            self.store.maybe_pause().await;
            self.tx.range(index, bounds).await
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

impl Store for TroubledStore {
    const TAG: BackendTag = MemoryStore::TAG;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        self.maybe_pause().await;
        if self.strikes(self.odds().crash_before) {
            return Err(broken("before the commit"));
        }
        if self.strikes(self.odds().conflict) {
            // Whatever the run answers, it is forgotten.
            let _ = self.0.store.transact(Watched::new(&op, self, true)).await;
        }
        let watched = Watched::new(&op, self, false);
        let out = self.0.store.transact(Arc::clone(&watched)).await?;
        if let Some(commit) = lock(&watched.seen).take() {
            lock(&self.0.log).push(commit);
        }
        self.maybe_pause().await;
        if self.strikes(self.odds().crash_after) {
            return Err(broken("after the commit"));
        }
        Ok(out)
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        self.maybe_pause().await;
        if self.strikes(self.odds().crash_before / 4) {
            return Err(broken("while reading"));
        }
        self.0.store.read(keys).await
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        self.maybe_pause().await;
        if self.strikes(self.odds().crash_before / 4) {
            return Err(broken("while listing"));
        }
        self.0.store.list(indexes, bounds).await
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        self.0.store.count(index).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        self.0.store.events(after, limit).await
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        self.0.store.trim_events(before, limit).await
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        self.0.store.reindex(partition).await
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.0.store.listen(topic)
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.0.store.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        self.0.store.now().await
    }
}
