//! What only a store on a server can get wrong: connections, callers that give up, other processes.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;
#[path = "support/write.rs"]
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ff_backend_postgres::{Pool, PostgresOptions, PostgresStore};
use ff_core::cursor::EventCursor;
use ff_core::ids::{ExecutionId, LaneId, LeaseEpoch, Namespace};
use ff_core::partition::Partition;
use ff_core::state::{LaneState, PublicState};
use ff_core::{Result, TimestampMs};
use ff_engine::event::{Event, EventBody};
use ff_engine::index::{Bounds, Index, Topic};
use ff_engine::key::Key;
use ff_engine::records::{Lane, Record, Settlement};
use ff_engine::store::{Op, Reach, Store, Tx};
use write::Write;

/// Longer than anything here takes, and shorter than the pause after which everybody looks in any case.
const PATIENCE: Duration = Duration::from_secs(15);

fn options() -> PostgresOptions {
    server::options().schema(server::fresh_name().as_str()).unwrap()
}

async fn store() -> PostgresStore {
    PostgresStore::connect(options()).await.unwrap()
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("an answer in time")
}

fn name(number: usize) -> (Namespace, LaneId) {
    (Namespace::new("acme").unwrap(), LaneId::new(format!("lane-{number}")).unwrap())
}

fn key(number: usize) -> Key {
    let (namespace, lane) = name(number);
    Key::lane(namespace, lane)
}

fn lane(number: usize) -> Lane {
    let (namespace, lane) = name(number);
    Lane { namespace, lane, state: LaneState::Active, since: TimestampMs(0), reason: String::new() }
}

fn event(number: usize) -> Event {
    let (namespace, lane) = name(number);
    let body = EventBody::LaneStateChanged { lane: lane.to_string(), state: String::new(), reason: String::new() };
    Event {
        partition: Partition::GLOBAL,
        namespace,
        execution_id: None,
        tags: BTreeMap::new(),
        at: TimestampMs(0),
        body,
    }
}

/// Writes a lane, after a wait that has nothing to do with the store, and a read.
struct Put(usize);

#[async_trait]
impl Op for Put {
    type Out = bool;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        tokio::task::yield_now().await;
        let known = tx.load(&[key(self.0)]).await?;
        tokio::task::yield_now().await;
        let others = tx.load(&[key(self.0 + 1_000)]).await?;
        tx.put_record(Record::from(lane(self.0)));
        tx.emit(event(self.0));
        Ok(known[0].is_none() && others[0].is_none())
    }
}

/// Writes something else each time it is tried, after another process was faster, unless that has to wait.
struct Unlucky {
    rival: PostgresStore,
    tries: AtomicU16,
}

impl Unlucky {
    fn owed(number: u16, due_at: i64) -> Record {
        let execution = ExecutionId::new(number, uuid::Uuid::from_u128(number.into()));
        Record::from(Settlement { execution, epoch: LeaseEpoch(1), quotas: Vec::new(), due_at: TimestampMs(due_at) })
    }
}

#[async_trait]
impl Op for Unlucky {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        tx.load(&[Self::owed(number, 1).key()]).await?;
        let faster = self.rival.transact(Arc::new(Write(vec![Self::owed(number, 1)])));
        let _ = tokio::time::timeout(Duration::from_secs(2), faster).await;
        tx.put_record(Self::owed(number, 2));
        Ok(())
    }
}

/// Looks at more queues than a task may in one go, then reads.
struct LookAround;

#[async_trait]
impl Op for LookAround {
    type Out = usize;

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    fn reach(&self) -> Reach {
        Reach::Everywhere
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<usize> {
        let queues: Vec<Index> =
            (0..400).map(|number| Index::LaneState(name(number).1, PublicState::Waiting)).collect();
        let found = tx.list(&queues, &Bounds::first(1)).await?;
        let known = tx.load(&[key(1)]).await?;
        Ok(found.len() + usize::from(known[0].is_some()))
    }
}

#[tokio::test]
async fn an_operation_may_wait_for_something_else_and_read_then() {
    let store = store().await;
    let writes = (0..50).map(|number| store.transact(Arc::new(Put(number))));
    let answers = in_time(futures_util::future::join_all(writes)).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap()));
    assert!(!in_time(store.transact(Arc::new(Put(7)))).await.unwrap(), "it is there now");
}

#[tokio::test]
async fn hundreds_of_queues_can_be_looked_at_before_a_read() {
    let store = store().await;
    assert_eq!(in_time(store.transact(Arc::new(LookAround))).await.unwrap(), 0);
    in_time(store.transact(Arc::new(Put(1)))).await.unwrap();
    assert_eq!(in_time(store.transact(Arc::new(LookAround))).await.unwrap(), 1);
}

#[tokio::test]
async fn one_connection_is_enough() {
    let store = PostgresStore::connect(options().connections(1)).await.unwrap();
    let writes = (0..20).map(|number| store.transact(Arc::new(Put(number))));
    let (written, _) = in_time(futures_util::future::join(futures_util::future::join_all(writes), async {
        for _ in 0..20 {
            store.list(&[Index::Lanes], &Bounds::first(100)).await.unwrap();
        }
    }))
    .await;
    assert!(written.into_iter().all(|answer| answer.unwrap()));
    assert_eq!(store.list(&[Index::Lanes], &Bounds::first(100)).await.unwrap().len(), 20);
}

#[tokio::test]
async fn a_read_that_nobody_waits_for_leaves_no_transaction_behind() {
    let store = PostgresStore::connect(options().connections(1)).await.unwrap();
    for number in 0..60 {
        let keys = [key(number), Key::keyring()];
        // Ended at a moment that differs from time to time: while it connects, begins, reads, or ends.
        let read = store.read(&keys);
        let _ = tokio::time::timeout(Duration::from_micros(40 * number as u64), read).await;
        in_time(store.transact(Arc::new(Put(number)))).await.unwrap();
        let found = in_time(store.read(&keys)).await.unwrap();
        assert!(found[0].is_some(), "what was committed before is seen, whatever was left behind");
    }
}

#[tokio::test]
async fn locks_are_waited_for_before_looking_whatever_the_database_has_as_default() {
    let (pool, schema) = server::prepared().await;
    let database = format!("strict_{}", schema.as_str());
    server::run(&pool, &schema, &format!("CREATE DATABASE {database}")).await;
    server::run(
        &pool,
        &schema,
        &format!(
            "ALTER DATABASE {database} SET default_transaction_isolation = 'serializable';
             ALTER DATABASE {database} SET default_transaction_read_only = on"
        ),
    )
    .await;
    let url = server::url().replace("/postgres?", &format!("/{database}?"));
    let url = match url.strip_suffix("/postgres") {
        Some(start) => format!("{start}/{database}"),
        None => url,
    };
    let (one, other) = (
        PostgresStore::connect(PostgresOptions::new(&url).unwrap()).await.unwrap(),
        PostgresStore::connect(PostgresOptions::new(&url).unwrap()).await.unwrap(),
    );
    let both = (0..40).map(|number| {
        let store = if number % 2 == 0 { &one } else { &other };
        store.transact(Arc::new(Put(number / 2)))
    });
    let answers = in_time(futures_util::future::join_all(both)).await;
    let fresh = answers.into_iter().filter(|answer| *answer.as_ref().unwrap()).count();
    assert_eq!(fresh, 20, "of two who write the same, exactly one finds nothing");
}

#[tokio::test]
async fn a_writer_that_announces_itself_late_does_not_take_events_back() {
    let options = options();
    let store = PostgresStore::connect(options.clone()).await.unwrap();
    for number in 0..3 {
        store.transact(Arc::new(Put(number))).await.unwrap();
    }
    let seen = store.events(&EventCursor::TAIL, 0).await.unwrap().next;
    let writer = Pool::connect(&options).await.unwrap().get().await.unwrap();
    // It read the last number before all of them, and its own will come after them.
    let announce = "SELECT pg_advisory_lock_shared(~({schema}::regnamespace::oid::integer), 0)"
        .replace("{schema}", &format!("'{}'", options.schema_name().as_str()));
    writer.batch_execute(&announce).await.unwrap();
    assert_eq!(store.events(&seen, 10).await.unwrap().next, seen);
    store.transact(Arc::new(Put(3))).await.unwrap();
    assert_eq!(store.events(&seen, 10).await.unwrap().events.len(), 0, "the writer's may come before this one");
    writer.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    assert_eq!(store.events(&seen, 10).await.unwrap().events.len(), 1);
}

#[tokio::test]
async fn a_commit_of_one_process_wakes_who_waits_in_another() {
    let options = options();
    let (one, other) =
        (PostgresStore::connect(options.clone()).await.unwrap(), PostgresStore::connect(options).await.unwrap());
    let news = other.listen(&Topic::Lane(name(3).1));
    one.transact(Arc::new(Put(3))).await.unwrap();
    in_time(news).await;
    assert!(other.read(&[key(3)]).await.unwrap()[0].is_some());
}

#[tokio::test]
async fn a_store_that_is_dropped_still_tells_others_of_its_last_commits() {
    let options = options();
    let (one, other) =
        (PostgresStore::connect(options.clone()).await.unwrap(), PostgresStore::connect(options).await.unwrap());
    let news: Vec<_> = (0..5).map(|number| other.listen(&Topic::Lane(name(number).1))).collect();
    for number in 0..5 {
        one.transact(Arc::new(Put(number))).await.unwrap();
    }
    drop(one);
    in_time(futures_util::future::join_all(news)).await;
}

#[tokio::test]
async fn who_comes_too_late_each_time_has_all_others_wait() {
    let options = options();
    let store = PostgresStore::connect(options.clone()).await.unwrap();
    let rival = PostgresStore::connect(options).await.unwrap();
    let unlucky = Arc::new(Unlucky { rival, tries: AtomicU16::new(0) });
    in_time(store.transact(Arc::clone(&unlucky))).await.unwrap();
    assert!(unlucky.tries.load(Ordering::Relaxed) > 2, "others were faster");
}
