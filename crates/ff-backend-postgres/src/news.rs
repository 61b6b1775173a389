//! News between processes: who commits tells what may interest others, apart from the commit and many at a time.
//!
//! To notify inside of a transaction makes all commits of the server wait for each other. So a task of its own tells, as soon as there is
//! something to tell, and at most once in a while; only what must not be missed is told by the commit itself, see [`alarm`]; and where nobody else
//! is, nothing is told at all, see [`company`]. A store that closes tells
//! the rest before it is gone. News that are lost with their process, or with a connection, are made up for: everybody who waits is woken after
//! each new connection, and now and then.

mod alarm;
mod company;
mod words;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_core::partition::fnv1a64;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::clock::StoreClock;
use ff_engine::index::Topic;
use ff_engine::topics::Topics;
use futures_util::StreamExt;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_postgres::AsyncMessage;
use uuid::Uuid;

use crate::connection::{Listener, Pool};
use crate::error::{Trouble, explain};
use crate::session::{Session, Step};
use crate::writer::plan::News;
use crate::writer::{Memory, Shared};
use alarm::{AlarmClock, Alarms};
use company::{Company, Presence};
pub(crate) use words::SOMETHING_IS_DUE;
use words::{ALL, HELLO, Heard, NOBODY, alarm as alarm_word, due, heard};

/// The shortest time between two notifications of one process.
const GAP: Duration = Duration::from_millis(5);

/// Bytes that a notification can carry, with room to spare.
const PAYLOAD_MAX: usize = 7_900;

/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(200);

/// How often everybody looks, news or not: for those whose news died with them. And how often a process asks whether others are there.
pub(crate) const SWEEP: Duration = Duration::from_secs(30);

/// Whether somebody listens, once that is known.
type Began = Option<Result<()>>;

/// The channel of a schema.
pub(crate) fn channel(schema: &str) -> String {
    format!("ff_{:016x}", number(schema))
}

/// The number of a schema's channel.
fn number(schema: &str) -> u64 {
    fnv1a64(schema.as_bytes())
}

/// What waits to be told.
#[derive(Debug, Default)]
struct Untold {
    topics: HashSet<Topic>,
    due_at: Option<TimestampMs>,
    /// Anything may have happened.
    everything: bool,
}

impl Untold {
    fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.due_at.is_none() && !self.everything
    }

    fn add(&mut self, topics: impl IntoIterator<Item = Topic>, due_at: Option<TimestampMs>) {
        self.topics.extend(topics);
        self.due_at = due_at.into_iter().chain(self.due_at).min();
    }
}

/// Those who tell other processes and hear from them, for as long as their store lives. Whoever hears ends with it at once; whoever tells
/// says the rest first, if its runtime goes on for so long.
#[derive(Debug)]
pub(crate) struct Messengers {
    herald: Herald,
    listening: JoinSet<()>,
}

impl Messengers {
    /// Returns when nothing is missed any longer.
    pub(crate) async fn start(shared: &Shared) -> Result<Self> {
        let (began, mut begins) = watch::channel(None);
        let Shared { pool, schema, topics, herald, memory, clock, .. } = shared;
        let mut messengers = Self { herald: herald.clone(), listening: JoinSet::new() };
        tokio::spawn(herald.clone().serve(pool.clone(), Arc::clone(schema)));
        let ears = Ears { topics: Arc::clone(topics), memory: Arc::clone(memory), alarms: Arc::default() };
        messengers.listening.spawn(ears.clone().ring(clock.clone()));
        let listening = herald.clone().listen(pool.clone(), Arc::clone(schema), ears, began);
        messengers.listening.spawn(listening);
        let began = begins.wait_for(Option::is_some).await.map_err(|_| Trouble::Closed)?.clone();
        began.unwrap_or(Err(Trouble::Closed.into()))?;
        Ok(messengers)
    }
}

impl Drop for Messengers {
    fn drop(&mut self) {
        self.herald.end_silence();
        self.herald.is_leaving.store(true, Ordering::SeqCst);
        self.herald.something.notify_one();
    }
}

/// News that are being told. What was not told stays untold, however the telling ends.
struct Telling<'h> {
    herald: &'h Herald,
    news: Untold,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let Untold { topics, due_at, everything } = std::mem::take(&mut self.news);
        self.herald.add(|untold| {
            untold.add(topics, due_at);
            untold.everything |= everything;
        });
    }
}

/// Whom news of others concern in this process.
#[derive(Clone, Default)]
struct Ears {
    topics: Arc<Topics>,
    memory: Arc<Memory>,
    alarms: Arc<AlarmClock>,
}

impl Ears {
    /// Passes on what was heard; something that is not understood may concern everybody.
    fn hear(&self, heard: Option<Heard>) {
        match heard {
            Some(Heard::Topic(topic)) => {
                if matches!(topic, Topic::Lane(_)) {
                    self.memory.mirrors.doubt();
                }
                self.topics.wake(&topic);
            }
            Some(Heard::Due(at)) => self.topics.wake_due(at),
            Some(Heard::Alarm(at)) => self.alarms.set(at),
            Some(Heard::Hello) => {}
            None => {
                self.memory.mirrors.doubt();
                self.topics.wake_all();
            }
        }
    }
}

impl Ears {
    /// Has everybody who waits for it look at what is due, whenever an alarm rings.
    async fn ring(self, clock: StoreClock) {
        loop {
            let at = self.alarms.ring(&clock).await;
            self.topics.wake_due(at);
        }
    }
}

/// Tells other processes.
#[derive(Clone, Debug)]
pub(crate) struct Herald {
    untold: Arc<Mutex<Untold>>,
    /// Alarms that it has set at them.
    alarms: Arc<Mutex<Alarms>>,
    company: Arc<Company>,
    /// Whether others were heard or seen since nobody was.
    has_met_others: Arc<AtomicBool>,
    /// Others came, or nobody is there any more.
    circumstances: Arc<Notify>,
    something: Arc<Notify>,
    /// One speaks at a time: who has it knows that everything that others took has been told.
    voice: Arc<tokio::sync::Mutex<()>>,
    /// Set with the last words.
    is_leaving: Arc<AtomicBool>,
    /// Who tells, so that nobody listens to itself.
    process: Uuid,
}

impl Herald {
    pub(crate) fn new() -> Self {
        Self {
            untold: Arc::default(),
            alarms: Arc::default(),
            company: Arc::default(),
            has_met_others: Arc::default(),
            circumstances: Arc::default(),
            something: Arc::default(),
            voice: Arc::default(),
            is_leaving: Arc::default(),
            process: Uuid::new_v4(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody else is there, as far as it is known.
    pub(crate) fn is_alone(&self) -> bool {
        self.company.is_alone()
    }

    /// Whether others are there, as far as it is known. Who does not listen knows of nobody, and is not alone either.
    pub(crate) fn has_company(&self) -> bool {
        self.has_met_others.load(Ordering::SeqCst)
    }

    /// Ends when one of the two may have changed.
    pub(crate) async fn circumstances(&self) {
        self.circumstances.notified().await;
    }

    fn meet(&self, has_met_others: bool) {
        if self.has_met_others.swap(has_met_others, Ordering::SeqCst) != has_met_others {
            self.circumstances.notify_one();
        }
    }

    /// Has news told soon, if there is anybody to tell.
    pub(crate) fn tell(&self, news: &News) {
        if !self.company.is_alone() {
            self.add(|untold| untold.add(news.topics.iter().cloned(), news.due_at));
        }
    }

    fn alarms(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The alarm that a commit must set at others, lest they miss what it makes due; none if they will look anyway.
    pub(crate) fn alarm_for(&self, due_at: Option<TimestampMs>, now: TimestampMs) -> Option<TimestampMs> {
        let due_at = due_at.filter(|_| !self.company.is_alone())?;
        self.alarms().needed(due_at, now)
    }

    /// Sets it, as a part of the commit.
    pub(crate) fn alarm(&self, schema: &str, at: TimestampMs) -> Step {
        notification(schema, self.says(&alarm_word(at)))
    }

    /// That was committed.
    pub(crate) fn has_set(&self, at: TimestampMs) {
        self.alarms().add(at);
    }

    /// Others are there, or may be: whoever was alone has told nothing for a while, and tells everything now.
    fn end_silence(&self) {
        self.add(|untold| untold.everything |= self.company.expect());
    }

    fn add(&self, news: impl FnOnce(&mut Untold)) {
        let mut untold = self.lock();
        news(&mut untold);
        let is_silent = untold.is_empty();
        drop(untold);
        if !is_silent {
            self.something.notify_one();
        }
    }

    /// Tells everything that others may not know; returns when it is told.
    ///
    /// # Errors
    /// When it could not be told. It is tried again, unless that would be in vain.
    pub(crate) async fn tell_rest(&self, pool: &Pool, schema: &Arc<str>) -> Result<()> {
        self.end_silence();
        self.tell_all(pool, schema).await
    }

    /// Tells what is untold now; returns when it is told.
    async fn tell_all(&self, pool: &Pool, schema: &Arc<str>) -> Result<()> {
        let _voice = self.voice.lock().await;
        let mut telling = Telling { herald: self, news: std::mem::take(&mut *self.lock()) };
        if telling.news.is_empty() {
            return Ok(());
        }
        let told = send(pool, schema, self.payload(&telling.news)).await;
        if !may_be_tried_again(&told) {
            telling.news = Untold::default();
        }
        told
    }

    /// Tells, until the last words are said.
    async fn serve(self, pool: Pool, schema: Arc<str>) {
        loop {
            self.something.notified().await;
            let is_last = self.is_leaving.load(Ordering::SeqCst);
            let told = self.tell_all(&pool, &schema).await;
            if let Err(error) = &told {
                tracing::debug!(%error, "news could not be told");
            }
            if is_last {
                return;
            }
            tokio::time::sleep(if may_be_tried_again(&told) { AGAIN } else { GAP }).await;
        }
    }

    fn payload(&self, untold: &Untold) -> String {
        let mut payload = self.process.to_string();
        for word in untold.topics.iter().map(Topic::word).chain(untold.due_at.map(due)) {
            payload.push('\n');
            payload.push_str(&word);
        }
        if untold.everything || payload.len() > PAYLOAD_MAX { self.says(ALL) } else { payload }
    }

    /// One word as a notification.
    fn says(&self, word: &str) -> String {
        format!("{}\n{word}", self.process)
    }

    /// Wakes those whom a notification concerns.
    fn hear(&self, payload: &str, ears: &Ears) {
        let mut words = payload.split('\n');
        let teller = words.next();
        if teller == Some(&self.process.to_string()) {
            return;
        }
        let told: Vec<Option<Heard>> = words.map(heard).collect();
        if told.contains(&Some(Heard::Hello)) {
            // Before anybody relies on them because there is company again.
            self.alarms().forget();
        }
        if teller != Some(NOBODY) {
            self.meet(true);
            self.end_silence();
        }
        told.into_iter().for_each(|heard| ears.hear(heard));
    }

    /// Listens, for as long as the process lives. Says when it began to, or why it could not.
    async fn listen(self, pool: Pool, schema: Arc<str>, ears: Ears, began: watch::Sender<Began>) {
        loop {
            // Nobody heard who came until now.
            self.alarms().forget();
            let heard = match pool.listener().await {
                Ok(Some(listener)) => self.hear_all(listener, &schema, &ears, &began).await,
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
            self.end_silence();
            ears.memory.mirrors.listen(false);
            tokio::time::sleep(AGAIN).await;
            ears.hear(None);
        }
    }

    /// Listens on a connection until it ends.
    async fn hear_all(
        &self,
        listener: Listener,
        schema: &str,
        ears: &Ears,
        began: &watch::Sender<Began>,
    ) -> Result<()> {
        let Listener { client, mut messages } = listener;
        let (channel, presence) = (channel(schema), Presence { client: &client, number: number(schema) });
        let listening = async {
            presence.come(&channel, &self.says(HELLO)).await?;
            self.alarms().forget();
            ears.memory.mirrors.listen(true);
            self.look_around(&presence).await?;
            began.send_replace(Some(Ok(())));
            loop {
                // What was told before, or never was, went unheard.
                ears.hear(None);
                tokio::time::sleep(SWEEP).await;
                self.look_around(&presence).await?;
            }
        };
        let hearing = async {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(told) = message {
                    self.hear(told.payload(), ears);
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = hearing => ended,
            failed = listening => failed,
        }
    }

    /// Asks whether others are there.
    async fn look_around(&self, presence: &Presence<'_>) -> Result<()> {
        let asked = self.company.moment();
        if presence.has_company().await? {
            self.meet(true);
            self.end_silence();
        } else {
            let _untold = self.lock();
            let was_alone = self.company.is_alone();
            self.company.miss(asked);
            if self.company.is_alone() && !was_alone {
                self.meet(false);
                self.circumstances.notify_one();
            }
        }
        Ok(())
    }
}

const fn may_be_tried_again(told: &Result<()>) -> bool {
    matches!(told, Err(EngineError::Transport { retryable: true, .. }))
}

async fn send(pool: &Pool, schema: &Arc<str>, payload: String) -> Result<()> {
    let session = Session::new(pool.get().await?, Arc::clone(schema));
    // It need not be on the disk: after a crash everybody looks anyway.
    let step = notification(schema, payload).and(", set_config('synchronous_commit', 'off', TRUE)");
    session.query(&step).await.map_err(explain)?;
    Ok(())
}

fn notification(schema: &str, payload: String) -> Step {
    Step::new("SELECT pg_notify($1, $2)").with(channel(schema)).with(payload)
}

#[cfg(test)]
mod tests {
    use ff_core::ids::ExecutionId;

    use super::*;

    fn about_events() -> Untold {
        Untold { topics: [Topic::Events].into(), ..Untold::default() }
    }

    /// One that has looked around and found nobody.
    fn alone() -> Herald {
        let herald = Herald::new();
        herald.company.miss(herald.company.moment());
        herald
    }

    #[test]
    fn who_is_alone_keeps_nothing_to_tell_and_tells_everything_when_somebody_comes() {
        let (herald, other, ears) = (alone(), Herald::new(), Ears::default());
        let news = News { topics: [Topic::Events].into_iter().collect(), due_at: Some(TimestampMs(1)) };
        herald.tell(&news);
        assert!(herald.lock().is_empty());
        herald.hear(&other.says(HELLO), &ears);
        assert_eq!(herald.payload(&std::mem::take(&mut *herald.lock())), herald.says(ALL));
        herald.tell(&news);
        assert!(herald.lock().topics.contains(&Topic::Events), "the other one hears it");
        herald.lock().topics.clear();
        herald.hear(&other.says(HELLO), &ears);
        assert!(!herald.lock().everything, "nothing was kept back");
    }

    #[test]
    fn own_words_and_those_of_nobody_in_particular_are_no_company() {
        let (herald, ears) = (alone(), Ears::default());
        herald.hear(&herald.says(HELLO), &ears);
        herald.hear(SOMETHING_IS_DUE, &ears);
        assert!(herald.company.is_alone());
        herald.hear(&Herald::new().payload(&about_events()), &ears);
        assert!(!herald.company.is_alone());
    }

    #[test]
    fn hello_is_no_news() {
        let (herald, ears) = (Herald::new(), Ears::default());
        let (mut news, _) = ears.topics.listen(&Topic::Events);
        herald.hear(&Herald::new().says(HELLO), &ears);
        assert!(futures_util::FutureExt::now_or_never(&mut news).is_none());
    }

    #[test]
    fn what_could_not_be_told_is_told_again() {
        let herald = Herald::new();
        drop(Telling { herald: &herald, news: Untold { everything: true, ..about_events() } });
        let untold = herald.lock();
        assert!(untold.everything && untold.topics.contains(&Topic::Events));
    }

    #[test]
    fn too_much_to_tell_is_told_as_everything() {
        let herald = Herald::new();
        let topics = (0..1_000).map(|n| Topic::Execution(ExecutionId::new(1, Uuid::from_u128(n)))).collect();
        let payload = herald.payload(&Untold { topics, ..Untold::default() });
        assert!(payload.ends_with(ALL) && payload.len() < PAYLOAD_MAX, "{payload}");
    }

    #[test]
    fn news_from_nobody_in_particular_wake_who_waits_for_what_is_due() {
        let (herald, ears) = (Herald::new(), Ears::default());
        let (mut news, _) = ears.topics.listen_due();
        herald.hear(SOMETHING_IS_DUE, &ears);
        let woken = futures_util::FutureExt::now_or_never(news.before(TimestampMs(1)));
        assert_eq!(woken, Some(TimestampMs(0)));
    }

    #[tokio::test]
    async fn an_alarm_that_others_set_has_those_look_who_wait_for_what_is_due() {
        let (herald, ears) = (Herald::new(), Ears::default());
        let ringing = tokio::spawn(ears.clone().ring(StoreClock::new(None, TimestampMs(1_000))));
        herald.hear(&Herald::new().says(&alarm_word(TimestampMs(1_020))), &ears);
        let (mut news, _) = ears.topics.listen_due();
        assert_eq!(news.before(TimestampMs(i64::MAX)).await, TimestampMs(1_020));
        ringing.abort();
    }

    #[test]
    fn nobody_hears_itself() {
        let (herald, ears) = (Herald::new(), Ears::default());
        let (mut news, _) = ears.topics.listen(&Topic::Events);
        let payload = herald.payload(&about_events());
        herald.hear(&payload, &ears);
        assert!(futures_util::FutureExt::now_or_never(&mut news).is_none());
        Herald::new().hear(&payload, &ears);
        assert!(futures_util::FutureExt::now_or_never(&mut news).is_some());
    }
}
