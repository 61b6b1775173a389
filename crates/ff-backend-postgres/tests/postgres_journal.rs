//! The journal of a process that is alone: what is in it, who finds it, and that nobody is deceived when ownership changes.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;
#[path = "support/write.rs"]
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ff_backend_postgres::deadpool_postgres::{Manager, Pool as OwnPool};
use ff_backend_postgres::{Client, Pool, PostgresOptions, PostgresStore, SchemaName};
use ff_core::ids::{ExecutionId, ExecutionKind, LaneId, Namespace};
use ff_core::partition::Partition;
use ff_core::{Blob, Result, TimestampMs};
use ff_engine::index::{Bounds, Index};
use ff_engine::key::Key;
use ff_engine::records::{Execution, NewExecution, QueueClass, Record, Step};
use ff_engine::store::{Op, Store, Tx};
use tokio_postgres::NoTls;
use uuid::Uuid;
use write::Write;

/// Longer than anything here takes, and shorter than the pause after which everybody looks in any case.
const PATIENCE: Duration = Duration::from_secs(15);

/// After which a process looks whether it is alone.
const SWEEP: Duration = Duration::from_secs(30);

const HOME: u16 = 1;

fn id(number: u128) -> ExecutionId {
    ExecutionId::new(HOME, Uuid::from_u128(number))
}

fn key(number: u128) -> Key {
    Key::execution(id(number))
}

fn execution(number: u128, priority: i32) -> Record {
    let new = NewExecution {
        id: id(number),
        namespace: Namespace::new("acme").unwrap(),
        lane: LaneId::new("default").unwrap(),
        class: QueueClass::plain(ExecutionKind::new("task").unwrap()),
        priority,
        delay_until: None,
        deadline_at: None,
        budget_ids: Vec::new(),
        quota_policy_ids: Vec::new(),
        retention_ms: None,
        tagged: false,
    };
    Execution::create(new, TimestampMs(1_000)).into()
}

/// A record in a row of its own, beside an execution.
fn step(number: u128, value: i32) -> Record {
    let value = Blob::from(value.to_string().into_bytes());
    Step { execution: id(number), life: 0, name: "step".to_owned(), value, saved_at: TimestampMs(1) }.into()
}

/// Adds one to the priority of an execution.
struct Raise(u128);

#[async_trait]
impl Op for Raise {
    type Out = i32;

    fn home(&self) -> Partition {
        id(self.0).partition()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<i32> {
        let found = tx.load(&[key(self.0)]).await?.remove(0);
        let Some(Record::Execution(found)) = found else { panic!("{found:?} is no execution") };
        let priority = found.priority + 1;
        tx.put_record(execution(self.0, priority));
        Ok(priority)
    }
}

struct Delete(u128);

#[async_trait]
impl Op for Delete {
    type Out = ();

    fn home(&self) -> Partition {
        id(self.0).partition()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        tx.load(&[key(self.0)]).await?;
        tx.delete(key(self.0));
        Ok(())
    }
}

/// A schema, seen from outside.
struct Site {
    schema: SchemaName,
    outside: Pool,
}

impl Site {
    async fn new() -> Self {
        Self { schema: server::fresh_name(), outside: server::pool().await }
    }

    fn options(&self) -> PostgresOptions {
        server::options().schema(self.schema.as_str()).unwrap()
    }

    async fn store(&self) -> PostgresStore {
        PostgresStore::connect(self.options()).await.unwrap()
    }

    /// A store whose sessions have a name.
    async fn store_named(&self, name: &str) -> PostgresStore {
        let url = server::url();
        let separator = if url.contains('?') { '&' } else { '?' };
        let options = PostgresOptions::new(&format!("{url}{separator}application_name={name}")).unwrap();
        PostgresStore::connect(options.schema(self.schema.as_str()).unwrap()).await.unwrap()
    }

    /// How many sessions have a name.
    async fn sessions(&self, name: &str) -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        self.client().await.query_one(sql, &[&name]).await.unwrap().get(0)
    }

    /// One that nobody hears coming: it has no connection that tells.
    async fn quiet_store(&self) -> PostgresStore {
        let manager = Manager::new(server::url().parse().unwrap(), NoTls);
        let pool = OwnPool::builder(manager).max_size(2).build().unwrap();
        PostgresStore::from_pool(pool, PostgresOptions::without_url().schema(self.schema.as_str()).unwrap())
            .await
            .unwrap()
    }

    async fn client(&self) -> Client {
        self.outside.get().await.unwrap()
    }

    async fn count(&self, what: &str) -> i64 {
        server::number(&self.client().await, &self.schema, &format!("SELECT count(*) FROM {{schema}}.{what}")).await
    }

    async fn owner(&self) -> i64 {
        server::number(&self.client().await, &self.schema, "SELECT owner FROM {schema}.reign").await
    }

    async fn run(&self, sql: &str) {
        server::run(&self.outside, &self.schema, sql).await;
    }
}

async fn put(store: &PostgresStore, records: Vec<Record>) {
    store.transact(Arc::new(Write(records))).await.unwrap();
}

async fn priority(store: &PostgresStore, number: u128) -> Option<i32> {
    match store.read(&[key(number)]).await.unwrap().remove(0) {
        Some(Record::Execution(found)) => Some(found.priority),
        found => {
            assert!(found.is_none(), "{found:?} is no execution");
            None
        }
    }
}

async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "{what}: it takes too long");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_new_execution_of_a_lone_process_is_in_the_journal_until_somebody_lists() {
    let site = Site::new().await;
    let store = site.store().await;
    put(&store, vec![execution(1, 3)]).await;
    store.transact(Arc::new(Raise(1))).await.unwrap();
    assert_eq!((site.count("execution").await, site.count("journal").await), (0, 2));
    assert_eq!(priority(&store, 1).await, Some(4));
    assert_eq!(site.count("execution").await, 0, "it is found by its id all the same");

    let listed = store.list(&[Index::Created], &Bounds::first(9)).await.unwrap();
    assert_eq!(listed.into_iter().map(|listed| listed.record).collect::<Vec<_>>(), [execution(1, 4)]);
    assert_eq!((site.count("execution").await, site.count("journal").await), (1, 0));

    store.transact(Arc::new(Raise(1))).await.unwrap();
    assert_eq!((priority(&store, 1).await, site.count("journal").await), (Some(5), 0), "what has settled stays");
}

#[tokio::test]
async fn who_wants_no_journal_has_none() {
    let site = Site::new().await;
    let store = PostgresStore::connect(site.options().young_max(0)).await.unwrap();
    put(&store, vec![execution(1, 3)]).await;
    assert_eq!((site.count("execution").await, site.count("journal").await, site.owner().await), (1, 0, 0));
}

#[tokio::test]
async fn what_a_process_left_in_the_journal_is_found_by_the_next_one() {
    let site = Site::new().await;
    let store = site.store().await;
    for number in 1..=3 {
        put(&store, vec![execution(number, 0)]).await;
    }
    // A line that is longer than a row.
    put(&store, (4..=303).map(|number| execution(number, 0)).collect()).await;
    store.transact(Arc::new(Raise(1))).await.unwrap();
    store.transact(Arc::new(Delete(2))).await.unwrap();
    assert_eq!(priority(&store, 2).await, None);
    assert!(site.count("journal WHERE part > 1").await > 0);
    drop(store);
    assert_eq!(site.count("execution").await, 0, "it has left without a word");

    let next = site.store().await;
    assert_eq!((site.count("execution").await, site.count("journal").await), (302, 0));
    assert_eq!((priority(&next, 1).await, priority(&next, 2).await), (Some(1), None));
    assert_eq!(next.count(&Index::Created).await.unwrap(), 302);
}

#[tokio::test]
async fn executions_settle_in_order_when_there_are_enough() {
    let site = Site::new().await;
    let store = PostgresStore::connect(site.options().young_max(4)).await.unwrap();
    for number in 1..=40 {
        put(&store, vec![execution(number, 0)]).await;
    }
    until("all but a few settle", || async { site.count("execution").await >= 36 }).await;
    until("their lines go", || async { site.count("journal").await <= 4 }).await;
    let young = 40 - site.count("execution").await;
    assert!(young > 0, "the newest stay");
    drop(store);
    let next = site.store().await;
    assert_eq!(next.count(&Index::Created).await.unwrap(), 40);
}

#[tokio::test]
async fn who_leaves_properly_leaves_everything_in_the_tables() {
    let site = Site::new().await;
    let store = site.store().await;
    put(&store, vec![execution(1, 0)]).await;
    store.tell_others().await.unwrap();
    assert_eq!((site.count("execution").await, site.count("journal").await, site.owner().await), (1, 0, 0));
    put(&store, vec![execution(2, 0)]).await;
    assert_eq!(store.count(&Index::Created).await.unwrap(), 2, "it goes on, if it must");
}

#[tokio::test]
async fn a_second_process_finds_everything_and_both_see_what_the_other_does() {
    let site = Site::new().await;
    let first = site.store().await;
    put(&first, vec![execution(1, 0)]).await;
    assert_ne!(site.owner().await, 0);
    let second = site.store().await;
    assert_eq!(priority(&second, 1).await, Some(0));
    for round in 0..10 {
        let (one, other) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let raised = one.transact(Arc::new(Raise(1))).await.unwrap();
        assert_eq!((priority(other, 1).await, raised), (Some(raised), round + 1));
        put(one, vec![execution(10 + u128::from(raised.unsigned_abs()), 0)]).await;
        let expected = 2 + u64::try_from(round).unwrap();
        assert_eq!(other.count(&Index::Created).await.unwrap(), expected);
        assert_eq!(one.count(&Index::Created).await.unwrap(), expected);
    }
    until("both are guests", || async { site.count("guest").await == 2 }).await;
    assert_eq!((site.owner().await, site.count("journal").await), (0, 0));
}

#[tokio::test]
async fn an_owner_that_was_not_told_does_not_believe_its_memory() {
    let site = Site::new().await;
    let owner = site.store().await;
    put(&owner, vec![execution(1, 0), step(1, 0)]).await;
    put(&owner, vec![execution(2, 0)]).await;
    let quiet = site.quiet_store().await;
    quiet.transact(Arc::new(Raise(1))).await.unwrap();
    assert_eq!(priority(&owner, 1).await, Some(1), "it reads what the other one wrote");
    assert_eq!(owner.transact(Arc::new(Raise(2))).await.unwrap(), 1, "and commits again, beside the other one");
    assert_eq!((priority(&quiet, 2).await, site.count("journal").await), (Some(1), 0));
}

#[tokio::test]
async fn a_commit_of_a_former_owner_is_not_accepted_but_made_again() {
    let site = Site::new().await;
    let owner = site.store().await;
    put(&owner, vec![execution(1, 0)]).await;
    let quiet = site.quiet_store().await;
    quiet.transact(Arc::new(Raise(1))).await.unwrap();
    assert_eq!(owner.transact(Arc::new(Raise(1))).await.unwrap(), 2);
    put(&owner, vec![execution(2, 0)]).await;
    assert_eq!((priority(&quiet, 1).await, priority(&quiet, 2).await), (Some(2), Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_processes_come_and_go() {
    const ROUNDS: i32 = 12;
    let site = Site::new().await;
    let first = Arc::new(site.store().await);
    put(&first, vec![execution(1, 0)]).await;
    let raising = tokio::spawn({
        let first = Arc::clone(&first);
        async move {
            for number in 0..200 {
                first.transact(Arc::new(Raise(1))).await.unwrap();
                put(&first, vec![execution(1_000 + number, 0)]).await;
            }
        }
    });
    for round in 0..ROUNDS {
        let guest = if round % 2 == 0 { site.store().await } else { site.quiet_store().await };
        guest.transact(Arc::new(Raise(1))).await.unwrap();
        if round % 3 == 0 {
            guest.tell_others().await.unwrap();
        }
    }
    raising.await.unwrap();
    assert_eq!(priority(&first, 1).await, Some(200 + ROUNDS));
    assert_eq!(first.count(&Index::Created).await.unwrap(), 201);
}

#[tokio::test]
async fn who_is_alone_again_owns_the_journal_again() {
    let site = Site::new().await;
    let (first, second) = (site.store().await, site.store_named("soon_gone").await);
    put(&first, vec![execution(1, 0)]).await;
    put(&second, vec![execution(2, 0)]).await;
    until("there is no owner", || async { site.owner().await == 0 }).await;
    second.tell_others().await.unwrap();
    drop(second);

    until("the other one is gone", || async { site.sessions("soon_gone").await == 0 }).await;
    tokio::time::pause();
    tokio::time::advance(SWEEP).await;
    tokio::time::resume();
    until("the first has looked", || async { site.owner().await != 0 }).await;

    let settled = site.count("execution").await;
    put(&first, vec![execution(3, 0)]).await;
    assert_eq!((site.count("execution").await, site.count("journal").await), (settled, 1));
    assert_eq!(first.count(&Index::Created).await.unwrap(), 3);
}

#[tokio::test]
async fn a_guest_that_was_forgotten_notices_at_its_next_commit() {
    let site = Site::new().await;
    let guest = PostgresStore::connect(site.options().young_max(0)).await.unwrap();
    put(&guest, vec![execution(1, 0)]).await;
    site.run("DELETE FROM {schema}.guest; UPDATE {schema}.reign SET owner = 77").await;
    assert_eq!(guest.transact(Arc::new(Raise(1))).await.unwrap(), 1);
    assert_eq!((site.owner().await, site.count("guest").await), (0, 1), "it came again");
}

#[tokio::test]
async fn who_comes_while_another_takes_over_waits_until_the_former_owner_is_silent() {
    let site = Site::new().await;
    site.store().await.tell_others().await.unwrap();
    site.run("UPDATE {schema}.reign SET owner = 77").await;
    let guest = site.options().young_max(0);
    let taking_over = tokio::spawn(PostgresStore::connect(guest.clone()));
    until("the owner is dispossessed", || async { site.owner().await == 0 }).await;

    let _late = PostgresStore::connect(guest).await.unwrap();

    let sql = "SELECT quiet_until - (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM {schema}.reign";
    let left = server::number(&site.client().await, &site.schema, sql).await;
    assert!((-60_000..=0).contains(&left), "{left} ms too early");
    taking_over.await.unwrap().unwrap();
}

#[tokio::test]
async fn after_a_crash_of_the_server_an_owner_finds_out_anew() {
    let site = Site::new().await;
    let store = site.store().await;
    put(&store, vec![execution(1, 0)]).await;
    // What is not logged is gone then.
    site.run("DELETE FROM {schema}.reign").await;
    assert_eq!(store.transact(Arc::new(Raise(1))).await.unwrap(), 1);
    assert_eq!((priority(&store, 1).await, store.count(&Index::Created).await.unwrap()), (Some(1), 1));
}

#[tokio::test]
async fn lines_that_were_left_behind_are_told_whoever_owned_the_journal() {
    let site = Site::new().await;
    let store = site.store().await;
    put(&store, vec![execution(1, 0)]).await;
    put(&store, vec![execution(2, 0)]).await;
    drop(store);
    site.run("UPDATE {schema}.reign SET owner = 0").await;
    let next = site.store().await;
    assert_eq!((site.count("execution").await, site.count("journal").await), (2, 0));
    put(&next, vec![execution(3, 0)]).await;
    assert_eq!(next.count(&Index::Created).await.unwrap(), 3);
}

#[tokio::test]
async fn a_list_that_nobody_waits_for_any_more_does_no_harm() {
    let site = Site::new().await;
    let store = site.store().await;
    let owner = site.owner().await;
    for number in 1..=50 {
        put(&store, vec![execution(number, 0)]).await;
        // Given up as soon as it would have to wait.
        assert!(futures_util::FutureExt::now_or_never(store.count(&Index::Created)).is_none());
    }
    assert_eq!(store.count(&Index::Created).await.unwrap(), 50);
    assert_eq!(site.owner().await, owner, "it is still the same");
}

#[tokio::test]
async fn a_damaged_journal_is_told_of_and_left_alone() {
    let site = Site::new().await;
    let store = site.store().await;
    put(&store, vec![execution(1, 0)]).await;
    drop(store);
    site.run("UPDATE {schema}.journal SET bytes = substr(bytes, 1, 20)").await;
    let error = PostgresStore::connect(site.options()).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("a line of the journal cannot be read"), "{error}");
    assert_eq!(site.count("journal").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_together_is_of_one_moment_while_executions_change_and_settle() {
    let site = Site::new().await;
    let store = Arc::new(PostgresStore::connect(site.options().young_max(2)).await.unwrap());
    put(&store, vec![execution(1, 0), step(1, 0)]).await;
    let writing = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            for value in 1..=300_i32 {
                // A new one now and then, so that it settles in the middle.
                let number = 1 + u128::from(value.unsigned_abs()) / 50;
                put(&store, vec![execution(number, value), step(number, value)]).await;
            }
        }
    });
    let mut moments = 0;
    while !writing.is_finished() {
        for number in 1..=7 {
            let found = store.read(&[key(number), step(number, 0).key()]).await.unwrap();
            let (Some(Record::Execution(execution)), Some(Record::Step(step))) = (&found[0], &found[1]) else {
                assert!(found.iter().all(Option::is_none), "{found:?}");
                continue;
            };
            assert_eq!(step.value.as_ref(), execution.priority.to_string().as_bytes());
            moments += 1;
        }
        store.count(&Index::Created).await.unwrap();
    }
    writing.await.unwrap();
    assert!(moments > 0, "nothing was read");
}
