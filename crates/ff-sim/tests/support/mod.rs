//! Another store: the model behind threads of its own, under another name, and wrong where a test wants it to be.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};
use ff_engine::alarms::DueNews;
use ff_engine::clock::Clock;
use ff_engine::event::{Event, EventBody, EventPage};
use ff_engine::index::{Bounds, Index, Listed, Topic};
use ff_engine::key::Key;
use ff_engine::memory::MemoryStore;
use ff_engine::records::Record;
use ff_engine::store::{Inspect, Op, Reach, Store, Tx};

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Nothing.
    None,
    /// Long lists lack their last row.
    ShortLists,
    /// Completions are not told.
    LosesCompletions,
    /// The progress of executions is not kept.
    ForgetsProgress,
    /// Time stands still.
    StopsTheClock,
    /// A read finds nothing.
    ReadsNothing,
}

/// A store that answers from threads of its own.
pub(crate) struct OtherStore {
    inner: Arc<MemoryStore>,
    flaw: Flaw,
}

impl OtherStore {
    pub(crate) fn new(clock: Arc<dyn Clock>, flaw: Flaw) -> Self {
        Self { inner: Arc::new(MemoryStore::new(clock)), flaw }
    }

    /// A store whose transactions look at all partitions.
    pub(crate) fn spanning_partitions(clock: Arc<dyn Clock>) -> Self {
        Self { inner: Arc::new(MemoryStore::new(clock).spanning_partitions()), flaw: Flaw::None }
    }
}

/// Finishes a future that never has to wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

/// An operation that runs on a flawed transaction.
struct Flawed<O> {
    op: Arc<O>,
    flaw: Flaw,
}

#[async_trait]
impl<O: Op> Op for Flawed<O> {
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
        self.op.run(&mut FlawedTx { tx, flaw: self.flaw }).await
    }
}

struct FlawedTx<'t> {
    tx: &'t mut (dyn Tx + 't),
    flaw: Flaw,
}

impl Tx for FlawedTx<'_> {
    fn now(&self) -> TimestampMs {
        self.tx.now()
    }

    fn load<'a>(&'a mut self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Option<Record>>>> {
        self.tx.load(keys)
    }

    fn range<'a>(&'a mut self, index: &'a Index, bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Record>>> {
        self.tx.range(index, bounds)
    }

    fn list<'a>(&'a mut self, indexes: &'a [Index], bounds: &'a Bounds) -> BoxFuture<'a, Result<Vec<Listed>>> {
        self.tx.list(indexes, bounds)
    }

    fn put_record(&mut self, record: Record) {
        if self.flaw != Flaw::ForgetsProgress || !matches!(record, Record::Progress(_)) {
            self.tx.put_record(record);
        }
    }

    fn delete(&mut self, key: Key) {
        self.tx.delete(key);
    }

    fn emit(&mut self, event: Event) {
        if self.flaw != Flaw::LosesCompletions || !matches!(event.body, EventBody::Completion { .. }) {
            self.tx.emit(event);
        }
    }
}

impl Store for OtherStore {
    const TAG: BackendTag = BackendTag::Postgres;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        let (store, flaw) = (Arc::clone(&self.inner), self.flaw);
        let (answer, answered) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            // Nobody waits any more if the caller gave up.
            let _ = answer.send(now(store.transact(Arc::new(Flawed { op, flaw }))));
        });
        answered.await.expect("the thread answers")
    }

    fn spans_partitions(&self) -> bool {
        self.inner.spans_partitions()
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        let found = self.inner.read(keys).await?;
        Ok(if self.flaw == Flaw::ReadsNothing { vec![None; found.len()] } else { found })
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        let mut found = self.inner.list(indexes, bounds).await?;
        if self.flaw == Flaw::ShortLists && found.len() > 3 {
            found.pop();
        }
        Ok(found)
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        self.inner.count(index).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        tokio::task::yield_now().await;
        self.inner.events(after, limit).await
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        self.inner.trim_events(before, limit).await
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        self.inner.reindex(partition).await
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.inner.listen(topic)
    }

    fn listen_due(&self) -> DueNews {
        self.inner.listen_due()
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.inner.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        tokio::task::yield_now().await;
        let now = self.inner.now().await?;
        Ok(if self.flaw == Flaw::StopsTheClock { TimestampMs(1_700_000_000_000) } else { now })
    }
}

impl Inspect for OtherStore {
    async fn records(&self) -> Result<Vec<Record>> {
        self.inner.records().await
    }

    async fn event_log(&self) -> Result<Vec<Event>> {
        self.inner.event_log().await
    }
}
