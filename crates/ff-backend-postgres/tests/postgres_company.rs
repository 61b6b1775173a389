//! Who tells whom: a process that is alone on its schema notifies nobody, and others miss nothing when they come.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;
#[path = "support/write.rs"]
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_backend_postgres::{Listener, Pool, PostgresOptions, PostgresStore};
use ff_core::TimestampMs;
use ff_core::ids::{ExecutionId, LaneId, LeaseEpoch, Namespace};
use ff_core::partition::fnv1a64;
use ff_core::state::LaneState;
use ff_engine::index::{DueKind, Topic};
use ff_engine::records::{Lane, Record, Settlement};
use ff_engine::store::Store;
use futures_util::StreamExt;
use tokio_postgres::AsyncMessage;
use write::Write;

/// Longer than anything here takes, and shorter than the pause after which everybody looks in any case.
const PATIENCE: Duration = Duration::from_secs(15);

/// After which a process looks for others.
const SWEEP: Duration = Duration::from_secs(30);

const EVERYTHING: &str = "*";
const HELLO: &str = "h";

/// Our own mark: words of nobody are no company.
const MARK: &str = "00000000-0000-0000-0000-000000000000";

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("an answer in time")
}

fn lane() -> LaneId {
    LaneId::new("mail").unwrap()
}

/// Commits something that may interest others.
async fn commit(store: &PostgresStore) {
    let namespace = Namespace::new("acme").unwrap();
    let lane = Lane { namespace, lane: lane(), state: LaneState::Active, since: TimestampMs(0), reason: String::new() };
    store.transact(Arc::new(Write(vec![Record::from(lane)]))).await.unwrap();
}

/// Commits something that others have to do at a time, should nobody else be left to do it.
async fn commit_due(store: &PostgresStore, due_at: TimestampMs) {
    let execution = ExecutionId::new(1, uuid::Uuid::now_v7());
    let owed = Settlement { execution, epoch: LeaseEpoch(1), quotas: Vec::new(), due_at };
    store.transact(Arc::new(Write(vec![Record::from(owed)]))).await.unwrap();
}

/// A schema, and somebody who hears what is told there without being noticed.
struct Site {
    pool: Pool,
    options: PostgresOptions,
    channel: String,
    listener: Listener,
}

impl Site {
    async fn new() -> Self {
        let (pool, schema) = (server::pool().await, server::fresh_name());
        let mut listener = pool.listener().await.unwrap().unwrap();
        let channel = format!("ff_{:016x}", fnv1a64(schema.quoted().as_bytes()));
        let listen = format!("LISTEN {channel}");
        tokio::select! {
            listening = listener.client.batch_execute(&listen) => listening.unwrap(),
            message = listener.messages.next() => panic!("{message:?} came before anybody listened"),
        }
        let options = server::options().schema(schema.as_str()).unwrap();
        Self { pool, options, channel, listener }
    }

    async fn store(&self) -> PostgresStore {
        PostgresStore::connect(self.options.clone()).await.unwrap()
    }

    /// A store whose sessions have a name.
    async fn store_named(&self, name: &str) -> PostgresStore {
        let url = server::url();
        let separator = if url.contains('?') { '&' } else { '?' };
        let options = PostgresOptions::new(&format!("{url}{separator}application_name={name}")).unwrap();
        PostgresStore::connect(options.schema(self.options.schema_name().as_str()).unwrap()).await.unwrap()
    }

    /// The next notification: who tells, and what.
    async fn next(&mut self) -> (String, Vec<String>) {
        loop {
            if let AsyncMessage::Notification(told) = in_time(self.listener.messages.next()).await.unwrap().unwrap() {
                let mut words = told.payload().split('\n').map(str::to_owned);
                return (words.next().unwrap(), words.collect());
            }
        }
    }

    /// Everything that is told until a mark of our own.
    async fn told_until_now(&mut self) -> Vec<Vec<String>> {
        let notify = format!("NOTIFY {}, '{MARK}'", self.channel);
        self.pool.get().await.unwrap().batch_execute(&notify).await.unwrap();
        let mut told = Vec::new();
        loop {
            match self.next().await {
                (teller, _) if teller == MARK => return told,
                (_, words) => told.push(words),
            }
        }
    }

    /// Hears until one of the notifications is this word; returns what came before.
    async fn told_until(&mut self, word: &str) -> Vec<Vec<String>> {
        let mut told = Vec::new();
        loop {
            let (_, words) = self.next().await;
            if words == [word] {
                return told;
            }
            told.push(words);
        }
    }

    /// Waits until commits of a store are not told any longer.
    async fn until_silent(&mut self, store: &PostgresStore) {
        let began = Instant::now();
        loop {
            commit(store).await;
            let told = self.told_until_now().await;
            if told.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "it still tells {told:?}");
        }
    }

    /// Processes on the server that serve sessions of this name, with this in their last statement.
    async fn sessions(&self, name: &str, statement: &str) -> Vec<i32> {
        let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND strpos(query, $2) > 0";
        let rows = self.pool.get().await.unwrap().query(sql, &[&name, &statement]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn end_session(&self, process: i32) {
        let client = self.pool.get().await.unwrap();
        assert!(client.query_one("SELECT pg_terminate_backend($1)", &[&process]).await.unwrap().get::<_, bool>(0));
    }
}

#[tokio::test]
async fn a_process_that_is_alone_notifies_nobody_of_its_work() {
    let mut site = Site::new().await;
    let store = site.store().await;
    assert_eq!(site.told_until_now().await, [[HELLO]], "it has come");
    for _ in 0..20 {
        commit(&store).await;
    }
    assert_eq!(site.told_until_now().await, Vec::<Vec<String>>::new());
}

#[tokio::test]
async fn work_is_told_where_another_process_listens() {
    let mut site = Site::new().await;
    let (one, other) = (site.store().await, site.store().await);
    let news = other.listen(&Topic::Lane(lane()));
    commit(&one).await;
    in_time(news).await;
    // By now one has told everything, because the other has come; from now on it tells what happens.
    site.told_until(EVERYTHING).await;
    commit(&one).await;
    let (_, words) = site.next().await;
    assert!(words.contains(&format!("l{}", lane())), "{words:?}");
    let news = one.listen(&Topic::Lane(lane()));
    commit(&other).await;
    in_time(news).await;
}

#[tokio::test]
async fn a_commit_that_makes_something_due_tells_others_itself_unless_they_look_anyway() {
    let mut site = Site::new().await;
    let (one, _other) = (site.store().await, site.store().await);
    site.told_until(EVERYTHING).await;
    let due_at = one.now().await.unwrap().plus(60_000);
    let alarm = |due_at: TimestampMs| vec![format!("a{}", due_at.plus(DueKind::Settlement.grace_ms() + 100).0)];
    commit_due(&one, due_at).await;
    assert!(site.told_until_now().await.contains(&alarm(due_at)), "before the commit was answered");
    let later = due_at.plus(60_000);
    commit_due(&one, later).await;
    assert!(!site.told_until_now().await.contains(&alarm(later)), "who looks at the first one learns of it");

    let _newcomer = site.store().await;
    site.told_until(HELLO).await;
    let began = Instant::now();
    loop {
        commit_due(&one, later).await;
        if site.told_until_now().await.contains(&alarm(later)) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "a newcomer was told of nothing");
    }
}

#[tokio::test]
async fn a_newcomer_hears_everything_from_one_that_was_alone_and_nothing_from_others() {
    let mut site = Site::new().await;
    let _first = site.store().await;
    site.told_until(HELLO).await;
    let _second = site.store().await;
    assert_eq!(site.told_until(EVERYTHING).await, [[HELLO]]);
    let _third = site.store().await;
    site.told_until(HELLO).await;
    assert_eq!(site.told_until_now().await, Vec::<Vec<String>>::new(), "they have told all along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_come_at_once_hear_each_other() {
    for _ in 0..10 {
        let site = Site::new().await;
        let (one, other) = tokio::join!(site.store(), site.store());
        for (teller, waiter) in [(&one, &other), (&other, &one)] {
            let news = waiter.listen(&Topic::Lane(lane()));
            commit(teller).await;
            in_time(news).await;
        }
    }
}

#[tokio::test]
async fn a_process_falls_silent_when_it_looks_and_the_others_are_gone() {
    let mut site = Site::new().await;
    let (one, other) = (site.store().await, site.store_named("soon_gone").await);
    site.told_until(EVERYTHING).await;
    drop(other);
    let began = Instant::now();
    while !site.sessions("soon_gone", "").await.is_empty() {
        assert!(began.elapsed() < PATIENCE, "sessions of a store stay behind");
    }
    site.told_until_now().await;
    commit(&one).await;
    let (_, words) = site.next().await;
    assert!(words.contains(&format!("l{}", lane())), "it has not looked yet: {words:?}");

    tokio::time::pause();
    tokio::time::advance(SWEEP).await;
    tokio::time::resume();

    site.until_silent(&one).await;
}

#[tokio::test]
async fn who_was_alone_and_loses_its_connection_tells_everything_until_it_listens_again() {
    let mut site = Site::new().await;
    let store = site.store_named("cut_off").await;
    commit(&store).await;
    assert_eq!(site.told_until_now().await, [[HELLO]]);

    let [listening] = site.sessions("cut_off", "pg_locks").await[..] else { panic!("one listens") };
    site.end_session(listening).await;

    assert_eq!(site.told_until(EVERYTHING).await, Vec::<Vec<String>>::new());
    site.told_until(HELLO).await;
    site.until_silent(&store).await;
}

#[tokio::test]
async fn who_was_alone_tells_everything_before_it_leaves() {
    let mut site = Site::new().await;
    let store = site.store().await;
    commit(&store).await;
    assert_eq!(site.told_until_now().await, [[HELLO]]);
    store.tell_others().await.unwrap();
    assert_eq!(site.told_until_now().await, [[EVERYTHING]]);
    drop(store);

    let store = site.store().await;
    commit(&store).await;
    assert_eq!(site.told_until_now().await, [[HELLO]]);
    drop(store);
    assert_eq!(site.told_until(EVERYTHING).await, Vec::<Vec<String>>::new());
}
