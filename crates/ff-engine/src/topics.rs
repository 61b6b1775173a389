//! Who waits for news, and waking exactly them: what the stores of this process share behind [`Store::listen`](crate::store::Store::listen).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::TimestampMs;
use ff_core::backend::layer::BoxFuture;
use tokio::sync::watch;

use crate::alarms::{Alarms, DueNews, UNKNOWN};
use crate::index::Topic;

/// Locks that listeners share, so that many of them come and go side by side.
const SHARDS: usize = 64;

/// News by topic. A listener is woken by its own topic only; a topic without listeners takes no room, and to announce it costs one look
/// at a number while nobody listens to anything.
#[derive(Debug)]
pub struct Topics {
    shards: Vec<Mutex<HashMap<Topic, Audience>>>,
    hasher: RandomState,
    alarms: Arc<Alarms>,
    listeners: AtomicUsize,
}

/// Those who listen to one topic.
#[derive(Debug)]
struct Audience {
    news: watch::Sender<()>,
    size: usize,
}

impl Default for Topics {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            alarms: Arc::default(),
            listeners: AtomicUsize::new(0),
        }
    }
}

impl Topics {
    /// Whether anybody waits.
    #[must_use]
    pub fn has_listeners(&self) -> bool {
        // A commit becomes visible, then it looks for listeners; a listener announces itself, then it looks for commits. One of them must
        // see the other, so neither look may overtake what stands before it.
        fence(Ordering::SeqCst);
        self.listeners.load(Ordering::SeqCst) > 0
    }

    /// Ends at the next news of the topic, counted from this call. Says whether this is the first listener of all.
    #[must_use]
    pub fn listen(self: &Arc<Self>, topic: &Topic) -> (BoxFuture<'static, ()>, bool) {
        let mut news = {
            let mut shard = self.shard(topic);
            let audience =
                shard.entry(topic.clone()).or_insert_with(|| Audience { news: watch::Sender::new(()), size: 0 });
            audience.size += 1;
            audience.news.subscribe()
        };
        let (counted, is_first) = self.count();
        let present = Present { counted, topic: topic.clone() };
        let wait = Box::pin(async move {
            // The audience lives as long as this listener.
            let _ = news.changed().await;
            drop(present);
        });
        (wait, is_first)
    }

    /// News of due work. Says whether this is the first listener of all.
    #[must_use]
    pub fn listen_due(self: &Arc<Self>) -> (DueNews, bool) {
        let (counted, is_first) = self.count();
        (self.alarms.listen(counted), is_first)
    }

    fn count(self: &Arc<Self>) -> (Counted, bool) {
        let is_first = self.listeners.fetch_add(1, Ordering::SeqCst) == 0;
        fence(Ordering::SeqCst);
        (Counted(Arc::clone(self)), is_first)
    }

    /// Wakes those who wait for work that is due at a later time.
    pub fn wake_due(&self, at: TimestampMs) {
        if self.has_listeners() {
            self.alarms.announce(at);
        }
    }

    /// Wakes those who listen to a topic.
    pub fn wake(&self, topic: &Topic) {
        if self.has_listeners()
            && let Some(audience) = self.shard(topic).get(topic)
        {
            audience.news.send_replace(());
        }
    }

    /// Wakes everybody: something changed, and nobody knows what.
    pub fn wake_all(&self) {
        for shard in &self.shards {
            for audience in lock(shard).values() {
                audience.news.send_replace(());
            }
        }
        self.alarms.announce(UNKNOWN);
    }

    fn shard(&self, topic: &Topic) -> MutexGuard<'_, HashMap<Topic, Audience>> {
        let place = self.hasher.hash_one(topic) % SHARDS as u64;
        lock(&self.shards[usize::try_from(place).unwrap_or(0)])
    }
}

fn lock(shard: &Mutex<HashMap<Topic, Audience>>) -> MutexGuard<'_, HashMap<Topic, Audience>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One listener; leaves when it is dropped.
struct Counted(Arc<Topics>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One listener of a topic; the last one takes the topic along.
struct Present {
    counted: Counted,
    topic: Topic,
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut shard = self.counted.0.shard(&self.topic);
        if let Some(audience) = shard.get_mut(&self.topic) {
            audience.size -= 1;
            if audience.size == 0 {
                shard.remove(&self.topic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use ff_core::ids::{ExecutionId, LaneId};
    use uuid::Uuid;

    use super::*;

    fn is_ready(wait: &mut BoxFuture<'static, ()>) -> bool {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn topic(number: u128) -> Topic {
        Topic::Execution(ExecutionId::new(1, Uuid::from_u128(number)))
    }

    fn topics_kept(topics: &Topics) -> usize {
        topics.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    #[test]
    fn news_of_other_topics_wake_nobody() {
        let topics = Arc::new(Topics::default());
        let (mut wait, _) = topics.listen(&topic(0));
        for number in 1..1000 {
            topics.wake(&topic(number));
        }
        assert!(!is_ready(&mut wait));
        topics.wake(&topic(0));
        assert!(is_ready(&mut wait));
    }

    #[test]
    fn news_between_the_call_and_the_first_look_count() {
        let topics = Arc::new(Topics::default());
        let (mut wait, _) = topics.listen(&Topic::Events);
        topics.wake(&Topic::Events);
        assert!(is_ready(&mut wait));
    }

    #[test]
    fn one_piece_of_news_wakes_every_listener_of_its_topic() {
        let topics = Arc::new(Topics::default());
        let (mut one, is_first) = topics.listen(&topic(1));
        assert!(is_first);
        let (mut two, is_first) = topics.listen(&topic(1));
        assert!(!is_first);
        topics.wake(&topic(1));
        assert!(is_ready(&mut one) && is_ready(&mut two));
    }

    #[test]
    fn everybody_can_be_woken_at_once() {
        let topics = Arc::new(Topics::default());
        let (mut one, _) = topics.listen(&topic(1));
        let (mut two, _) = topics.listen(&Topic::Lane(LaneId::new("mail").unwrap()));
        topics.wake_all();
        assert!(is_ready(&mut one) && is_ready(&mut two));
    }

    #[test]
    fn the_last_listener_takes_its_topic_along() {
        let topics = Arc::new(Topics::default());
        let waits: Vec<_> =
            (0..100).flat_map(|number| [topics.listen(&topic(number)).0, topics.listen(&topic(number)).0]).collect();
        assert_eq!(topics_kept(&topics), 100);
        assert!(topics.has_listeners());
        drop(waits);
        assert_eq!(topics_kept(&topics), 0);
        assert!(!topics.has_listeners());
    }

    #[test]
    fn a_listener_that_was_woken_is_gone() {
        let topics = Arc::new(Topics::default());
        let (mut wait, _) = topics.listen(&topic(1));
        topics.wake(&topic(1));
        assert!(is_ready(&mut wait));
        assert_eq!(topics_kept(&topics), 0);
    }
}
