//! News between processes: who commits tells what may interest others, apart from the commit and many at a time.
//!
//! To notify inside of a transaction makes all commits of the server wait for each other. So a task of its own tells, as soon as there is
//! something to tell, and at most once in a while. News that are lost with their process, or with a connection, are made up for: everybody
//! who waits is woken after each new connection, and now and then.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ff_core::partition::fnv1a64;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::index::Topic;
use ff_engine::topics::Topics;
use futures_util::StreamExt;
use tokio::sync::{Notify, watch};
use tokio_postgres::AsyncMessage;
use uuid::Uuid;

use crate::connection::{Listener, Pool};
use crate::error::explain;
use crate::session::{Frame, Session, Step};
use crate::writer::plan::News;

/// The shortest time between two notifications of one process.
const GAP: Duration = Duration::from_millis(5);

/// Bytes that a notification can carry, with room to spare.
const PAYLOAD_MAX: usize = 7_900;

/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(200);

/// How often everybody looks, news or not: for those whose news died with them.
const SWEEP: Duration = Duration::from_secs(20);

/// Whether somebody listens, once that is known.
pub(crate) type Began = Option<Result<()>>;

/// The word for everything.
const ALL: &str = "*";

/// The channel of a schema.
fn channel(schema: &str) -> String {
    format!("ff_{:016x}", fnv1a64(schema.as_bytes()))
}

/// What waits to be told.
#[derive(Debug, Default)]
struct Untold {
    topics: HashSet<Topic>,
    due_at: Option<TimestampMs>,
}

/// Tells other processes.
#[derive(Clone, Debug)]
pub(crate) struct Herald {
    untold: Arc<Mutex<Untold>>,
    something: Arc<Notify>,
    /// Who tells, so that nobody listens to itself.
    process: Uuid,
}

impl Herald {
    pub(crate) fn new() -> Self {
        Self { untold: Arc::default(), something: Arc::default(), process: Uuid::new_v4() }
    }

    /// Has news told soon.
    pub(crate) fn tell(&self, news: &News) {
        if news.topics.is_empty() && news.due_at.is_none() {
            return;
        }
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.topics.extend(news.topics.iter().cloned());
        untold.due_at = news.due_at.into_iter().chain(untold.due_at).min();
        drop(untold);
        self.something.notify_one();
    }

    /// Tells, for as long as the process lives.
    pub(crate) async fn serve(self, pool: Pool, schema: Arc<str>) {
        let channel = channel(&schema);
        loop {
            self.something.notified().await;
            let untold = std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner));
            let payload = self.payload(&untold);
            while let Err(error) = send(&pool, &schema, &channel, &payload).await {
                tracing::debug!(%error, "news could not be told");
                if !matches!(error, EngineError::Transport { retryable: true, .. }) {
                    break;
                }
                tokio::time::sleep(AGAIN).await;
            }
            tokio::time::sleep(GAP).await;
        }
    }

    fn payload(&self, untold: &Untold) -> String {
        let mut payload = self.process.to_string();
        let due = untold.due_at.map(|at| format!("d{}", at.0));
        for word in untold.topics.iter().map(word).chain(due) {
            payload.push('\n');
            payload.push_str(&word);
        }
        if payload.len() > PAYLOAD_MAX { format!("{}\n{ALL}", self.process) } else { payload }
    }

    /// Wakes those whom a notification concerns.
    fn hear(&self, payload: &str, topics: &Topics) {
        let mut words = payload.split('\n');
        if words.next() == Some(&self.process.to_string()) {
            return;
        }
        for word in words {
            match heard(word) {
                Some(Heard::Topic(topic)) => topics.wake(&topic),
                Some(Heard::Due(at)) => topics.wake_due(at),
                None => topics.wake_all(),
            }
        }
    }

    /// Listens, for as long as the process lives. Says when it began to, or why it could not.
    pub(crate) async fn listen(self, pool: Pool, schema: Arc<str>, topics: Arc<Topics>, began: watch::Sender<Began>) {
        let channel = channel(&schema);
        loop {
            let heard = match pool.listener().await {
                Ok(Some(listener)) => self.hear_all(listener, &channel, &topics, &began).await,
                // Somebody else's pool hears nothing: those who wait look now and then.
                Ok(None) => {
                    began.send_replace(Some(Ok(())));
                    tokio::time::sleep(SWEEP).await;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = heard {
                tracing::debug!(%error, "nobody listens to the server");
                began.send_if_modified(|began| began.is_none() && began.replace(Err(error)).is_none());
            }
            tokio::time::sleep(AGAIN).await;
            topics.wake_all();
        }
    }

    /// Listens on a connection until it ends.
    async fn hear_all(
        &self,
        listener: Listener,
        channel: &str,
        topics: &Topics,
        began: &watch::Sender<Began>,
    ) -> Result<()> {
        let Listener { client, mut messages } = listener;
        let listening = async {
            client.batch_execute(&format!("LISTEN {channel}")).await.map_err(explain)?;
            began.send_replace(Some(Ok(())));
            loop {
                // What was told before, or never was, went unheard.
                topics.wake_all();
                tokio::time::sleep(SWEEP).await;
            }
        };
        let hearing = async {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(told) = message {
                    self.hear(told.payload(), topics);
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = hearing => ended,
            failed = listening => failed,
        }
    }
}

async fn send(pool: &Pool, schema: &Arc<str>, channel: &str, payload: &str) -> Result<()> {
    let session = Session::new(pool.get().await?, Arc::clone(schema));
    let steps = [
        // It need not be on the disk: after a crash everybody looks anyway.
        Step::new("SELECT set_config('synchronous_commit', 'off', TRUE)"),
        Step::new("SELECT pg_notify($1, $2)").with(channel.to_owned()).with(payload.to_owned()),
    ];
    session.run(Frame::Whole, &steps).await.map_err(explain)?;
    Ok(())
}

/// A topic as a word of a notification. Names have no control characters.
fn word(topic: &Topic) -> String {
    match topic {
        Topic::Lane(lane) => format!("l{lane}"),
        Topic::Stream(execution) => format!("s{execution}"),
        Topic::Flow(flow) => format!("f{flow}"),
        Topic::Execution(execution) => format!("x{execution}"),
        Topic::Worker(instance) => format!("w{instance}"),
        Topic::Events => "e".to_owned(),
    }
}

#[derive(Debug, PartialEq)]
enum Heard {
    Topic(Topic),
    Due(TimestampMs),
}

fn heard(word: &str) -> Option<Heard> {
    let kind = word.chars().next()?;
    let rest = &word[kind.len_utf8()..];
    let topic = match kind {
        'd' => return rest.parse().ok().map(|at| Heard::Due(TimestampMs(at))),
        'l' => Topic::Lane(rest.parse().ok()?),
        's' => Topic::Stream(rest.parse().ok()?),
        'f' => Topic::Flow(rest.parse().ok()?),
        'x' => Topic::Execution(rest.parse().ok()?),
        'w' => Topic::Worker(rest.parse().ok()?),
        'e' => Topic::Events,
        _ => return None,
    };
    Some(Heard::Topic(topic))
}

#[cfg(test)]
mod tests {
    use ff_core::ids::{ExecutionId, FlowId, LaneId, WorkerInstanceId};

    use super::*;

    #[test]
    fn every_topic_is_heard_as_it_was_told() {
        let execution = ExecutionId::new(7, Uuid::from_u128(9));
        for topic in [
            Topic::Lane(LaneId::new("mail and more").unwrap()),
            Topic::Stream(execution),
            Topic::Flow(FlowId::from_uuid(Uuid::from_u128(3))),
            Topic::Execution(execution),
            Topic::Worker(WorkerInstanceId::new("w-1").unwrap()),
            Topic::Events,
        ] {
            assert_eq!(heard(&word(&topic)), Some(Heard::Topic(topic)));
        }
        assert_eq!(heard("d-5"), Some(Heard::Due(TimestampMs(-5))));
        assert_eq!(heard(ALL), None);
        assert_eq!(heard("?of a later version"), None);
    }

    #[test]
    fn too_much_to_tell_is_told_as_everything() {
        let herald = Herald::new();
        let topics = (0..1_000).map(|n| Topic::Execution(ExecutionId::new(1, Uuid::from_u128(n)))).collect();
        let payload = herald.payload(&Untold { topics, due_at: None });
        assert!(payload.ends_with(ALL) && payload.len() < PAYLOAD_MAX, "{payload}");
    }

    #[test]
    fn nobody_hears_itself() {
        let (herald, topics) = (Herald::new(), Arc::new(Topics::default()));
        let (mut news, _) = topics.listen(&Topic::Events);
        let payload = herald.payload(&Untold { topics: [Topic::Events].into(), due_at: None });
        herald.hear(&payload, &topics);
        assert!(futures_util::FutureExt::now_or_never(&mut news).is_none());
        Herald::new().hear(&payload, &topics);
        assert!(futures_util::FutureExt::now_or_never(&mut news).is_some());
    }
}
