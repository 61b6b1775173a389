//! A store that misbehaves where a test asks it to, and counts what it was asked for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ff_core::backend::layer::BoxFuture;
use ff_core::cursor::EventCursor;
use ff_core::error::ContentionKind;
use ff_core::handle::BackendTag;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};

use super::*;
use crate::alarms::DueNews;
use crate::event::EventPage;
use crate::index::{Bounds, DueKind, Index, Listed, Position, Topic};
use crate::records::Record;
use crate::store::Op;

/// How a store misbehaves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mood {
    Panics,
    Refuses,
    NeverAnswers,
}

impl Mood {
    async fn act(self) -> Result<()> {
        match self {
            Self::Panics => panic!("the store is in a mood"),
            Self::Refuses => Err(EngineError::Contention(ContentionKind::RetryExhausted)),
            Self::NeverAnswers => std::future::pending().await,
        }
    }
}

/// A store that misbehaves where a test asks it to.
pub(super) struct Odd {
    pub(super) inner: Shared,
    /// Lists of this index misbehave.
    pub(super) odd_index: Index,
    /// How they do.
    pub(super) mood: Mood,
    /// How often they still do.
    pub(super) left: AtomicU32,
    /// Transactions of this partition misbehave.
    pub(super) odd_home: Mutex<Option<(Partition, Mood)>>,
    /// Repairs of this partition misbehave.
    pub(super) odd_reindex: Mutex<Option<(Partition, Mood)>>,
    /// Stands among the terminal executions whenever somebody looks, and is gone by the time it is handled.
    pub(super) phantom: Mutex<Option<Listed>>,
    pub(super) lists: AtomicUsize,
    pub(super) trims: AtomicUsize,
    pub(super) tidies: AtomicUsize,
}

impl Odd {
    pub(super) fn new(inner: Shared) -> Self {
        Self {
            inner,
            odd_index: Index::Due(DueKind::Delay),
            mood: Mood::Panics,
            left: AtomicU32::new(0),
            odd_home: Mutex::default(),
            odd_reindex: Mutex::default(),
            phantom: Mutex::default(),
            lists: AtomicUsize::new(0),
            trims: AtomicUsize::new(0),
            tidies: AtomicUsize::new(0),
        }
    }

    async fn list_or_not(&self, indexes: &[Index]) -> Result<()> {
        self.lists.fetch_add(1, Ordering::AcqRel);
        if !indexes.contains(&self.odd_index)
            || self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_err()
        {
            return Ok(());
        }
        self.mood.act().await
    }

    async fn act_in(odd: &Mutex<Option<(Partition, Mood)>>, partition: Partition) -> Result<()> {
        let odd = *odd.lock().unwrap();
        match odd {
            Some((home, mood)) if home == partition => mood.act().await,
            _ => Ok(()),
        }
    }
}

impl Store for Odd {
    const TAG: BackendTag = BackendTag::Memory;

    async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        Self::act_in(&self.odd_home, op.home()).await?;
        self.inner.transact(op).await
    }

    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Record>>> {
        self.inner.read(keys).await
    }

    async fn list(&self, indexes: &[Index], bounds: &Bounds) -> Result<Vec<Listed>> {
        self.list_or_not(indexes).await?;
        let phantom = self.phantom.lock().unwrap().clone();
        match phantom {
            Some(phantom) if indexes.contains(&Index::Terminal) && bounds.after.is_none() => Ok(vec![phantom]),
            _ => self.inner.list(indexes, bounds).await,
        }
    }

    async fn keys(&self, index: &Index, bounds: &Bounds) -> Result<Vec<(Position, Key)>> {
        self.list_or_not(std::slice::from_ref(index)).await?;
        self.inner.keys(index, bounds).await
    }

    async fn count(&self, index: &Index) -> Result<u64> {
        self.inner.count(index).await
    }

    async fn events(&self, after: &EventCursor, limit: usize) -> Result<EventPage> {
        self.inner.events(after, limit).await
    }

    async fn trim_events(&self, before: TimestampMs, limit: usize) -> Result<usize> {
        self.trims.fetch_add(1, Ordering::AcqRel);
        self.inner.trim_events(before, limit).await
    }

    async fn reindex(&self, partition: Partition) -> Result<(u32, u32)> {
        Self::act_in(&self.odd_reindex, partition).await?;
        self.inner.reindex(partition).await
    }

    fn listen(&self, topic: &Topic) -> BoxFuture<'static, ()> {
        self.inner.listen(topic)
    }

    fn listen_due(&self) -> DueNews {
        self.inner.listen_due()
    }

    async fn tidy(&self) -> Result<()> {
        self.tidies.fetch_add(1, Ordering::AcqRel);
        self.inner.tidy().await
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        self.inner.sleep_until(at)
    }

    async fn now(&self) -> Result<TimestampMs> {
        self.inner.now().await
    }
}
