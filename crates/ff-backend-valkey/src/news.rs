//! How processes tell each other what happened. Each commit carries what it has to tell, and the server passes it on to everybody: so news are
//! neither lost with a process nor earlier than what they tell of.

use std::sync::Arc;
use std::time::Duration;

use ff_core::TimestampMs;
use ff_core::{EngineError, Result};
use ff_engine::index::Topic;
use ff_engine::topics::Topics;
use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{Client, ConnectionInfo, ErrorKind, RedisResult, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use crate::connection::pause;
use crate::error::explain;
use crate::writer::plan::News;

/// Topics that one message names; more of them are told as everything.
const TOPICS_MAX: usize = 1_024;

/// The word for everything.
const ALL: &str = "*";

/// How long it may take until news are heard for the first time: some nodes may not answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a node may take until it passes messages on.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);

/// After how long a silence a node is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(10);

/// How long it may take to say so.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

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
        let outcome = timeout(PATIENCE, has_begun.wait_for(Option::is_some)).await;
        match outcome.ok().and_then(|outcome| outcome.ok().and_then(|outcome| outcome.clone())) {
            Some(Err(error)) => Err(error),
            Some(Ok(())) => Ok(Self { _tasks: tasks }),
            None => Err(EngineError::Timeout { op: "subscribe", elapsed: PATIENCE }),
        }
    }
}

/// Hears, for as long as anybody wants to, from one node after the other. Only if all of them fail, the beginning does.
async fn hear(
    herald: Herald,
    channel: String,
    nodes: impl Fn() -> Vec<ConnectionInfo>,
    topics: Arc<Topics>,
    begun: watch::Sender<Option<Result<()>>>,
) {
    let mut tries = 0_u32;
    loop {
        let mut failure = None;
        for node in nodes() {
            match subscribe(&node, &channel).await {
                Ok(messages) => {
                    tell_beginning(&begun, Ok(()));
                    // What was told before is unheard.
                    topics.wake_all();
                    let is_known = || nodes().iter().any(|known| known.addr() == node.addr());
                    listen(messages, &herald, &topics, is_known).await;
                    tries = 0;
                }
                Err(error) => {
                    tracing::warn!(%error, "news of other processes are not heard; trying again");
                    failure = Some(error);
                }
            }
            tokio::time::sleep(pause(tries)).await;
            tries = tries.saturating_add(1);
        }
        if let Some(error) = failure {
            tell_beginning(&begun, Err(explain(&error)));
        }
    }
}

async fn subscribe(node: &ConnectionInfo, channel: &str) -> RedisResult<PubSub> {
    let subscribing = async {
        let mut messages = Client::open(node.clone())?.get_async_pubsub().await?;
        messages.subscribe(channel).await?;
        Ok(messages)
    };
    timeout(SUBSCRIBE_TIMEOUT, subscribing)
        .await
        .unwrap_or_else(|_| Err((ErrorKind::Io, "a node does not answer").into()))
}

/// Hears from a node until the connection is lost, or the node says nothing any more or is not known any more; then everybody looks for themselves.
async fn listen(messages: PubSub, herald: &Herald, topics: &Topics, is_known: impl Fn() -> bool) {
    let (mut sink, mut messages) = messages.split();
    loop {
        match timeout(SILENCE, messages.next()).await {
            Ok(Some(message)) => herald.hear(message.get_payload_bytes(), topics),
            Ok(None) => break,
            // Any answer will do: the user may not be allowed to ask.
            Err(_) if is_known() && timeout(PING_TIMEOUT, sink.ping::<Value>()).await.is_ok() => {}
            Err(_) => {
                tracing::warn!("a node does not pass news on any more; asking another one");
                break;
            }
        }
    }
    topics.wake_all();
}

/// Only the beginning is waited for.
fn tell_beginning(begun: &watch::Sender<Option<Result<()>>>, outcome: Result<()>) {
    begun.send_if_modified(|told| told.is_none() && told.replace(outcome).is_none());
}

#[cfg(test)]
mod tests {
    use ff_core::ids::LaneId;
    use futures_util::FutureExt;
    use redis::IntoConnectionInfo;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

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

    async fn serve(stream: TcpStream, subscribes: bool, tell: mpsc::UnboundedSender<()>) {
        let mut heard = vec![0; 4_096];
        while stream.readable().await.is_ok() {
            let count = match stream.try_read(&mut heard) {
                Ok(0) => return,
                read => read.unwrap_or(0),
            };
            let text = String::from_utf8_lossy(&heard[..count]).into_owned();
            let mut answer = "+OK\r\n".repeat(text.matches("SETINFO").count());
            if subscribes && text.contains("SUBSCRIBE") {
                answer.push_str("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
                let _ = tell.send(());
            }
            let _ = stream.try_write(answer.as_bytes());
        }
    }

    /// A node that takes subscriptions, if at all, and does not say anything else. It tells whenever it got one.
    async fn node(subscribes: bool) -> (ConnectionInfo, mpsc::UnboundedReceiver<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let info = format!("redis://{}", listener.local_addr().unwrap()).into_connection_info().unwrap();
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, subscribes, tell.clone()));
            }
        });
        (info, told)
    }

    async fn start(nodes: Vec<ConnectionInfo>, topics: &Arc<Topics>) -> Result<Messengers> {
        let herald = Herald::new(Uuid::nil());
        Messengers::start(herald, "news".to_owned(), move || nodes.clone(), Arc::clone(topics)).await
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_that_answers_is_enough() {
        let ((mute, _), (good, _good)) = (node(false).await, node(true).await);
        start(vec![mute.clone(), good], &Arc::default()).await.unwrap();
        assert!(start(vec![mute], &Arc::default()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_falls_silent_is_left_for_another() {
        let ((first, mut at_first), (second, mut at_second)) = (node(true).await, node(true).await);
        let topics = Arc::default();
        let _messengers = start(vec![first, second], &topics).await.unwrap();
        at_first.recv().await.unwrap();
        let (wait, _) = topics.listen(&lane());
        at_second.recv().await.unwrap();
        assert!(wait.now_or_never().is_some(), "something may have been missed");
    }
}
