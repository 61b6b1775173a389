//! Who waits for news, and waking them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ff_core::TimestampMs;
use ff_core::backend::layer::BoxFuture;
use ff_engine::alarms::{Alarms, DueNews, UNKNOWN};
use ff_engine::index::Topic;
use tokio::sync::watch;

const SHARDS: usize = 64;

/// News by topic. Topics share shards: waking somebody for nothing is allowed, not waking is not.
#[derive(Debug)]
pub(crate) struct Topics {
    shards: Vec<watch::Sender<u64>>,
    alarms: Arc<Alarms>,
    listeners: AtomicUsize,
}

impl Topics {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| watch::Sender::new(0)).collect(),
            alarms: Arc::default(),
            listeners: AtomicUsize::new(0),
        }
    }

    fn shard(&self, topic: &Topic) -> &watch::Sender<u64> {
        let mut hasher = DefaultHasher::new();
        topic.hash(&mut hasher);
        &self.shards[usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)]
    }

    /// Whether anybody waits.
    pub(crate) fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::Acquire) > 0
    }

    /// Ends at the next news of the topic. Says whether this is the first listener.
    pub(crate) fn listen(self: &Arc<Self>, topic: &Topic) -> (BoxFuture<'static, ()>, bool) {
        let mut news = self.shard(topic).subscribe();
        let (present, first) = self.enter();
        let wait = Box::pin(async move {
            // A closed channel means the store is gone: nothing to wait for.
            let _ = news.changed().await;
            drop(present);
        });
        (wait, first)
    }

    /// News of due work. Says whether this is the first listener.
    pub(crate) fn listen_due(self: &Arc<Self>) -> (DueNews, bool) {
        let (present, first) = self.enter();
        (self.alarms.listen(present), first)
    }

    fn enter(self: &Arc<Self>) -> (Present, bool) {
        let first = self.listeners.fetch_add(1, Ordering::AcqRel) == 0;
        (Present(Arc::clone(self)), first)
    }

    /// Wakes who waits for work that is due at a later time.
    pub(crate) fn wake_due(&self, at: TimestampMs) {
        self.alarms.announce(at);
    }

    pub(crate) fn wake(&self, topic: &Topic) {
        self.shard(topic).send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes everybody: another process wrote, and nobody knows what.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            shard.send_modify(|count| *count = count.wrapping_add(1));
        }
        self.alarms.announce(UNKNOWN);
    }
}

/// One listener; leaves when it is dropped.
struct Present(Arc<Topics>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::AcqRel);
    }
}
