//! How processes tell each other what happened. Each commit carries what it has to tell, and the server passes it on to everybody: so news are
//! neither lost with a process nor earlier than what they tell of.

use std::sync::Arc;
use std::time::Duration;

use ff_core::TimestampMs;
use ff_core::{EngineError, Result};
use ff_engine::index::Topic;
use ff_engine::topics::Topics;
use futures_util::StreamExt;
use redis::{Client, ConnectionInfo, RedisResult};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::connection::pause;
use crate::error::explain;
use crate::writer::plan::News;

/// Topics that one message names; more of them are told as everything.
const TOPICS_MAX: usize = 1_024;

/// The word for everything.
const ALL: &str = "*";

/// How long the first connection that hears news may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who tells.
#[derive(Debug)]
pub(crate) struct Herald {
    process: Uuid,
}

impl Herald {
    pub(crate) const fn new(process: Uuid) -> Self {
        Self { process }
    }

    /// What others are told: who tells, then one word per line; nothing if there is nothing to tell.
    pub(crate) fn message(&self, news: &News) -> Vec<u8> {
        let due = news.due_at.map(|at| format!("d{}", at.0));
        if news.topics.is_empty() && due.is_none() {
            return Vec::new();
        }
        let mut message = self.process.to_string();
        let mut say = |word: &str| {
            message.push('\n');
            message.push_str(word);
        };
        if news.topics.len() > TOPICS_MAX {
            say(ALL);
        } else {
            news.topics.iter().for_each(|topic| say(&topic.word()));
            due.iter().for_each(|due| say(due));
        }
        message.into_bytes()
    }

    /// Wakes those who wait for what a message tells, unless it is one of our own.
    fn hear(&self, message: &[u8], topics: &Topics) {
        let Ok(message) = std::str::from_utf8(message) else { return topics.wake_all() };
        let mut words = message.split('\n');
        if words.next().is_some_and(|teller| teller.parse() == Ok(self.process)) {
            return;
        }
        for word in words {
            let due = word.strip_prefix('d').and_then(|at| at.parse().ok()).map(TimestampMs);
            match (due, Topic::of_word(word)) {
                (Some(at), _) => topics.wake_due(at),
                (None, Some(topic)) => topics.wake(&topic),
                // Everything, or something that only a later version knows.
                (None, None) => topics.wake_all(),
            }
        }
    }
}

/// Those who hear; ended when this is dropped.
pub(crate) struct Messengers {
    _tasks: JoinSet<()>,
}

impl Messengers {
    /// Hears from now on, through any of the nodes that there are at a time: a cluster passes messages on to all of them.
    pub(crate) async fn start(
        herald: Herald,
        channel: String,
        nodes: impl Fn() -> Vec<ConnectionInfo> + Send + Sync + 'static,
        topics: Arc<Topics>,
    ) -> Result<Self> {
        let (begun, mut has_begun) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(hear(herald, channel, nodes, topics, begun));
        let outcome = tokio::time::timeout(PATIENCE, has_begun.wait_for(Option::is_some)).await;
        match outcome.ok().and_then(|outcome| outcome.ok().and_then(|outcome| outcome.clone())) {
            Some(Err(error)) => Err(error),
            Some(Ok(())) => Ok(Self { _tasks: tasks }),
            None => Err(EngineError::Timeout { op: "subscribe", elapsed: PATIENCE }),
        }
    }
}

/// Hears, for as long as anybody wants to; after a silence everybody looks for themselves.
async fn hear(
    herald: Herald,
    channel: String,
    nodes: impl Fn() -> Vec<ConnectionInfo>,
    topics: Arc<Topics>,
    begun: watch::Sender<Option<Result<()>>>,
) {
    let mut tries = 0_u32;
    for node in std::iter::repeat_with(nodes).flatten() {
        let heard = async {
            let mut messages = Client::open(node)?.get_async_pubsub().await?;
            messages.subscribe(&channel).await?;
            tell_beginning(&begun, Ok(()));
            // What was told before is unheard.
            topics.wake_all();
            let mut messages = messages.into_on_message();
            while let Some(message) = messages.next().await {
                herald.hear(message.get_payload_bytes(), &topics);
            }
            RedisResult::Ok(())
        };
        match heard.await {
            Ok(()) => tries = 0,
            Err(error) => {
                tell_beginning(&begun, Err(explain(&error)));
                tracing::warn!(%error, "news of other processes are not heard; trying again");
            }
        }
        tokio::time::sleep(pause(tries)).await;
        tries = tries.saturating_add(1);
    }
}

/// Only the beginning is waited for.
fn tell_beginning(begun: &watch::Sender<Option<Result<()>>>, outcome: Result<()>) {
    begun.send_if_modified(|told| told.is_none() && told.replace(outcome).is_none());
}

#[cfg(test)]
mod tests {
    use ff_core::ids::LaneId;
    use futures_util::FutureExt;

    use super::*;

    fn lane() -> Topic {
        Topic::Lane(LaneId::new("mail").unwrap())
    }

    fn is_heard(teller: &Herald, listener: &Herald, news: &News, topic: &Topic) -> bool {
        let topics = Arc::<Topics>::default();
        let (wait, _) = topics.listen(topic);
        listener.hear(&teller.message(news), &topics);
        wait.now_or_never().is_some()
    }

    #[test]
    fn others_hear_what_is_told_and_nothing_else() {
        let (one, other) = (Herald::new(Uuid::from_u128(1)), Herald::new(Uuid::from_u128(2)));
        let news = News { topics: [lane()].into_iter().collect(), due_at: None };
        assert!(is_heard(&one, &other, &news, &lane()));
        assert!(!is_heard(&one, &other, &news, &Topic::Events));
        assert!(!is_heard(&one, &one, &news, &lane()), "it knows already");
    }

    #[test]
    fn what_is_due_is_told() {
        let (one, other) = (Herald::new(Uuid::from_u128(1)), Herald::new(Uuid::from_u128(2)));
        let topics = Arc::<Topics>::default();
        let (mut due, _) = topics.listen_due();
        other.hear(&one.message(&News { due_at: Some(TimestampMs(-7)), ..News::default() }), &topics);
        assert_eq!(due.before(TimestampMs(0)).now_or_never(), Some(TimestampMs(-7)));
    }

    #[test]
    fn what_a_later_version_says_wakes_everybody() {
        let topics = Arc::<Topics>::default();
        let (wait, _) = topics.listen(&lane());
        Herald::new(Uuid::from_u128(1)).hear(b"somebody\n?new", &topics);
        assert!(wait.now_or_never().is_some());
    }

    #[test]
    fn nothing_is_told_when_there_is_nothing_to_tell() {
        assert!(Herald::new(Uuid::nil()).message(&News::default()).is_empty());
    }
}
