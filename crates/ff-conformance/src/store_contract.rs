//! What every store must guarantee, apart from any operation: atomic commits, no lost updates, no phantoms, ordered events.

mod due_news;

use std::sync::Arc;

use ff_core::backend::layer::BoxFuture;
use ff_core::backend::subscriptions::LeaseChange;
use ff_core::cursor::EventCursor;
use ff_core::ids::{
    AttemptId, AttemptIndex, ExecutionId, ExecutionKind, LaneId, LeaseEpoch, LeaseId, Namespace, WorkerId,
    WorkerInstanceId,
};
use ff_core::partition::Partition;
use ff_core::state::{AttemptLifecycle, AttemptType, LaneState};
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::event::{Event, EventBody};
use ff_engine::index::{Bounds, Index, Position, Topic};
use ff_engine::key::Key;
use ff_engine::records::{Attempt, Execution, Lane, NewExecution, QueueClass, Record, Settlement, Taker};
use ff_engine::store::{Op, Store, Tx};
use libtest_mimic::Trial;
use uuid::Uuid;

use due_news::{
    a_refused_operation_tells_nothing, a_sleeper_wakes_for_an_earlier_entry_alone,
    an_entry_that_is_due_earlier_is_told, an_entry_that_stays_or_goes_is_no_news,
    news_count_from_the_call_or_from_starting_over, tidying_changes_nothing,
};

const HOME: u16 = 1;

const NOW: TimestampMs = TimestampMs(1_000);

/// The contract as trials; `open` makes a fresh store, a prefix tells one form of a store from another.
pub fn trials<S: Store, F, Opened>(prefix: &str, open: F) -> Vec<Trial>
where
    F: Fn() -> Opened + Send + Sync + 'static,
    Opened: Future<Output = S> + Send + 'static,
{
    let open = Arc::new(open);
    let trial = |(name, check): (&str, Check<S>)| {
        let open = Arc::clone(&open);
        Trial::test(format!("{prefix}store::{name}"), move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move { check(Arc::new(open().await)).await });
            Ok(())
        })
    };
    contract::<S>().into_iter().map(trial).collect()
}

type Check<S> = fn(Arc<S>) -> BoxFuture<'static, ()>;

macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        fn contract<S: Store>() -> Vec<(&'static str, Check<S>)> {
            vec![$((stringify!($name), |store| Box::pin($name(store)))),+]
        }
    };
}

checks![
    a_refused_operation_writes_nothing,
    an_operation_sees_its_own_writes,
    concurrent_updates_are_not_lost,
    concurrent_inserts_into_a_range_are_noticed,
    a_deleted_record_leaves_every_index,
    several_indexes_are_listed_in_one_order,
    bounds_cut_a_listing_at_both_ends,
    ownership_can_be_read_apart_from_its_execution,
    the_ownership_of_a_deleted_execution_is_absent,
    events_resume_strictly_after_their_cursor,
    the_tail_cursor_sees_only_what_follows,
    a_foreign_cursor_is_refused,
    a_cursor_ahead_of_the_log_is_refused,
    trimmed_events_are_told,
    a_listener_wakes_after_the_commit,
    an_entry_that_is_due_earlier_is_told,
    a_sleeper_wakes_for_an_earlier_entry_alone,
    news_count_from_the_call_or_from_starting_over,
    an_entry_that_stays_or_goes_is_no_news,
    a_refused_operation_tells_nothing,
    tidying_changes_nothing,
    a_consistent_index_needs_no_repair,
    a_record_that_is_replaced_unread_is_read_as_it_is,
    what_belongs_to_an_execution_does_not_need_it,
];

fn execution_id(n: u128) -> ExecutionId {
    ExecutionId::new(HOME, Uuid::from_u128(n))
}

fn execution(n: u128, now: TimestampMs) -> Execution {
    Execution::create(new_execution(n), now)
}

fn delayed(n: u128, until: i64) -> Execution {
    Execution::create(NewExecution { delay_until: Some(TimestampMs(until)), ..new_execution(n) }, NOW)
}

fn new_execution(n: u128) -> NewExecution {
    NewExecution {
        id: execution_id(n),
        namespace: Namespace::new("acme").unwrap(),
        lane: lane_id("default"),
        class: QueueClass::plain(ExecutionKind::new("task").unwrap()),
        priority: 0,
        delay_until: None,
        deadline_at: None,
        budget_ids: Vec::new(),
        quota_policy_ids: Vec::new(),
        retention_ms: None,
        tagged: false,
    }
}

fn lane_id(name: &str) -> LaneId {
    LaneId::new(name).unwrap()
}

fn attempt(n: u128, index: u32) -> Attempt {
    Attempt {
        execution: execution_id(n),
        index: AttemptIndex(index),
        id: AttemptId::from_uuid(Uuid::from_u128(u128::from(index))),
        attempt_type: AttemptType::Initial,
        lifecycle: AttemptLifecycle::Started,
        lease_id: LeaseId::from_uuid(Uuid::nil()),
        lease_epoch: LeaseEpoch(1),
        worker_id: WorkerId::new("w").unwrap(),
        worker_instance_id: WorkerInstanceId::new("w-1").unwrap(),
        created_at: TimestampMs(0),
        started_at: TimestampMs(0),
        suspended_at: None,
        resumed_at: None,
        ended_at: None,
        reason: None,
        category: None,
        detail: None,
        lineage: None,
        taken: false,
    }
}

fn settlement(n: u128) -> Settlement {
    Settlement { execution: execution_id(n), epoch: LeaseEpoch(1), quotas: Vec::new(), due_at: TimestampMs(5) }
}

fn event(reason: u64) -> Event {
    Event {
        partition: Partition::flow(HOME),
        namespace: Namespace::new("acme").unwrap(),
        execution_id: Some(execution_id(1)),
        tags: std::collections::BTreeMap::new(),
        at: TimestampMs(i64::try_from(reason).unwrap()),
        body: EventBody::Lease(LeaseChange::Expired {
            lease_id: LeaseId::from_uuid(Uuid::nil()),
            lease_epoch: LeaseEpoch(reason),
            prev_owner: WorkerInstanceId::new("w-1").unwrap(),
        }),
    }
}

/// Writes records and events; refuses at the end if told so.
#[derive(Default)]
struct Write {
    records: Vec<Record>,
    deletes: Vec<Key>,
    events: Vec<Event>,
    refuse: bool,
}

#[async_trait::async_trait]
impl Op for Write {
    type Out = ();

    fn home(&self) -> Partition {
        let key = self.records.first().map(Record::key).or_else(|| self.deletes.first().cloned());
        key.map_or(Partition::flow(HOME), |key| key.partition)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        for record in &self.records {
            tx.put_record(record.clone());
        }
        for key in &self.deletes {
            tx.delete(key.clone());
        }
        for event in &self.events {
            tx.emit(event.clone());
        }
        if self.refuse { Err(EngineError::invalid("refused on purpose")) } else { Ok(()) }
    }
}

async fn write<S: Store>(store: &S, records: Vec<Record>) {
    store.transact(Arc::new(Write { records, ..Write::default() })).await.unwrap();
}

async fn emit<S: Store>(store: &S, events: Vec<Event>) {
    store.transact(Arc::new(Write { events, ..Write::default() })).await.unwrap();
}

async fn a_refused_operation_writes_nothing<S: Store>(store: Arc<S>) {
    let op = Write {
        records: vec![execution(1, TimestampMs(1)).into()],
        events: vec![event(1)],
        refuse: true,
        ..Write::default()
    };
    let start = store.events(&EventCursor::TAIL, 1).await.unwrap().next;
    assert!(store.transact(Arc::new(op)).await.is_err());
    assert_eq!(store.read(&[Key::execution(execution_id(1))]).await.unwrap(), vec![None]);
    assert!(store.events(&start, 10).await.unwrap().events.is_empty());
    assert_eq!(store.count(&Index::Created).await.unwrap(), 0);
}

struct OwnWrites;

#[async_trait::async_trait]
impl Op for OwnWrites {
    type Out = (Option<Record>, Vec<Record>, Option<Record>);

    fn home(&self) -> Partition {
        Partition::flow(HOME)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        tx.put_record(attempt(1, 1).into());
        tx.delete(Key::attempt(execution_id(1), AttemptIndex(0)));
        let key = [Key::attempt(execution_id(1), AttemptIndex(1))];
        let loaded = tx.load(&key).await?.pop().flatten();
        let ranged = tx.range(&Index::AttemptsOf(execution_id(1)), &Bounds::first(10)).await?;
        let gone = [Key::attempt(execution_id(1), AttemptIndex(0))];
        Ok((loaded, ranged, tx.load(&gone).await?.pop().flatten()))
    }
}

async fn an_operation_sees_its_own_writes<S: Store>(store: Arc<S>) {
    write(&*store, vec![execution(1, TimestampMs(1)).into(), attempt(1, 0).into()]).await;
    let (loaded, ranged, gone) = store.transact(Arc::new(OwnWrites)).await.unwrap();
    assert_eq!(loaded, Some(attempt(1, 1).into()));
    assert_eq!(ranged, vec![attempt(1, 1).into()]);
    assert_eq!(gone, None);
}

struct Count;

#[async_trait::async_trait]
impl Op for Count {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::flow(HOME)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let key = [Key::execution(execution_id(1))];
        let Some(Record::Execution(found)) = tx.load(&key).await?.pop().flatten() else { return Ok(()) };
        tokio::task::yield_now().await;
        let mut next = Execution::clone(&found);
        next.retry_count += 1;
        tx.put_record(next.into());
        Ok(())
    }
}

async fn concurrent_updates_are_not_lost<S: Store>(store: Arc<S>) {
    write(&*store, vec![execution(1, TimestampMs(1)).into()]).await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..10 {
                    store.transact(Arc::new(Count)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    match store.read(&[Key::execution(execution_id(1))]).await.unwrap().pop().flatten() {
        Some(Record::Execution(found)) => assert_eq!(found.retry_count, 80),
        other => panic!("the execution is gone: {other:?}"),
    }
}

/// Inserts one attempt unless the range is full already.
struct InsertBelow(u32);

#[async_trait::async_trait]
impl Op for InsertBelow {
    type Out = bool;

    fn home(&self) -> Partition {
        Partition::flow(HOME)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let index = Index::AttemptsOf(execution_id(1));
        let taken = tx.range(&index, &Bounds::first(100)).await?.len();
        tokio::task::yield_now().await;
        if taken >= 3 {
            return Ok(false);
        }
        tx.put_record(attempt(1, self.0).into());
        Ok(true)
    }
}

async fn concurrent_inserts_into_a_range_are_noticed<S: Store>(store: Arc<S>) {
    write(&*store, vec![execution(1, TimestampMs(1)).into()]).await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.transact(Arc::new(InsertBelow(n))).await.unwrap() })
        })
        .collect();
    let mut inserted = 0;
    for task in tasks {
        inserted += u32::from(task.await.unwrap());
    }
    assert_eq!(inserted, 3);
    assert_eq!(store.count(&Index::AttemptsOf(execution_id(1))).await.unwrap(), 3);
}

async fn a_deleted_record_leaves_every_index<S: Store>(store: Arc<S>) {
    write(&*store, vec![execution(1, TimestampMs(1)).into()]).await;
    assert_eq!(store.count(&Index::Created).await.unwrap(), 1);
    store
        .transact(Arc::new(Write { deletes: vec![Key::execution(execution_id(1))], ..Write::default() }))
        .await
        .unwrap();
    assert_eq!(store.count(&Index::Created).await.unwrap(), 0);
    assert_eq!(store.count(&Index::EligibleIn(Partition::flow(HOME), lane_id("default"))).await.unwrap(), 0);
}

fn listed(found: Vec<ff_engine::index::Listed>) -> Vec<Key> {
    found.into_iter().map(|listed| listed.record.key()).collect()
}

async fn several_indexes_are_listed_in_one_order<S: Store>(store: Arc<S>) {
    let mut other = execution(2, TimestampMs(2));
    other.lane = lane_id("other");
    let records = vec![execution(3, TimestampMs(3)).into(), other.into(), execution(1, TimestampMs(1)).into()];
    write(&*store, records).await;
    let indexes = [
        Index::EligibleIn(Partition::flow(HOME), lane_id("default")),
        Index::EligibleIn(Partition::flow(HOME), lane_id("other")),
    ];
    let first = listed(store.list(&indexes, &Bounds::first(2)).await.unwrap());
    assert_eq!(first, vec![Key::execution(execution_id(1)), Key::execution(execution_id(2))]);
    let last = listed(store.list(&indexes, &Bounds::last(2)).await.unwrap());
    assert_eq!(last, vec![Key::execution(execution_id(3)), Key::execution(execution_id(2))]);
}

async fn bounds_cut_a_listing_at_both_ends<S: Store>(store: Arc<S>) {
    write(&*store, (0..5).map(|n| attempt(1, n).into()).collect()).await;
    let bounds = Bounds::first(10).after(Some(Position::new(0, []))).until(Position::new(3, []));
    let found = listed(store.list(&[Index::AttemptsOf(execution_id(1))], &bounds).await.unwrap());
    let expected: Vec<_> = (1..=3).map(|n| Key::attempt(execution_id(1), AttemptIndex(n))).collect();
    assert_eq!(found, expected);
}

async fn ownership_can_be_read_apart_from_its_execution<S: Store>(store: Arc<S>) {
    let mut held = execution(1, TimestampMs(1));
    let taker = Taker {
        lease_id: LeaseId::from_uuid(Uuid::from_u128(9)),
        worker_id: WorkerId::new("w").unwrap(),
        worker_instance_id: WorkerInstanceId::new("w-1").unwrap(),
        ttl_ms: 1000,
    };
    held.claim(taker, AttemptId::from_uuid(Uuid::from_u128(8)), TimestampMs(2));
    let ownership = held.ownership();
    write(&*store, vec![held.into()]).await;
    let found = store.read(&[Key::fence(execution_id(1)), Key::fence(execution_id(2))]).await.unwrap();
    assert_eq!(found, vec![Some(ownership.into()), None]);
}

/// Says whether there is ownership to read.
struct IsOwned;

#[async_trait::async_trait]
impl Op for IsOwned {
    type Out = bool;

    fn home(&self) -> Partition {
        Partition::flow(HOME)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let found = tx.load(&[Key::fence(execution_id(1))]).await?;
        Ok(found.iter().any(Option::is_some))
    }
}

async fn the_ownership_of_a_deleted_execution_is_absent<S: Store>(store: Arc<S>) {
    write(&*store, vec![execution(1, TimestampMs(1)).into()]).await;
    assert!(store.transact(Arc::new(IsOwned)).await.unwrap());
    store
        .transact(Arc::new(Write { deletes: vec![Key::execution(execution_id(1))], ..Write::default() }))
        .await
        .unwrap();
    assert!(!store.transact(Arc::new(IsOwned)).await.unwrap(), "what is absent stays readable in a transaction");
}

async fn events_resume_strictly_after_their_cursor<S: Store>(store: Arc<S>) {
    let start = store.events(&EventCursor::TAIL, 1).await.unwrap().next;
    emit(&*store, (1..=5).map(event).collect()).await;
    let page = store.events(&start, 2).await.unwrap();
    let rest = store.events(&page.next, 10).await.unwrap();
    let seen: Vec<_> = page.events.iter().chain(&rest.events).map(|(_, event)| event.at.0).collect();
    assert_eq!(seen, vec![1, 2, 3, 4, 5]);
    let after_third = store.events(&rest.events[0].0, 10).await.unwrap();
    assert_eq!(after_third.events.len(), 2);
    let end = store.events(&rest.next, 10).await.unwrap();
    assert!(end.events.is_empty());
    assert_eq!(end.next, rest.next);
}

async fn the_tail_cursor_sees_only_what_follows<S: Store>(store: Arc<S>) {
    emit(&*store, vec![event(1)]).await;
    let tail = store.events(&EventCursor::TAIL, 10).await.unwrap();
    assert!(tail.events.is_empty());
    emit(&*store, vec![event(2)]).await;
    let page = store.events(&tail.next, 10).await.unwrap();
    assert_eq!(page.events.iter().map(|(_, event)| event.at.0).collect::<Vec<_>>(), vec![2]);
}

async fn a_foreign_cursor_is_refused<S: Store>(store: Arc<S>) {
    for bytes in [vec![0xee; 9], vec![S::TAG.wire_byte()], vec![S::TAG.wire_byte(); 3]] {
        let answer = store.events(&EventCursor::from_bytes(bytes), 1).await;
        assert_eq!(answer.map_err(|error| error.code()), Err("invalid_input"));
    }
}

async fn a_cursor_ahead_of_the_log_is_refused<S: Store>(store: Arc<S>) {
    let tail = store.events(&EventCursor::TAIL, 1).await.unwrap().next.as_bytes().to_vec();
    let ahead = |by: u8, place: usize| {
        let mut bytes = tail.clone();
        bytes[place] += by;
        EventCursor::from_bytes(bytes)
    };
    let (far, near) = (ahead(0x7f, tail.len() - 8), ahead(1, tail.len() - 1));
    let answer = store.events(&far, 1).await;
    assert_eq!(
        answer.map_err(|error| error.code()),
        Err("invalid_input"),
        "to wait for it would skip what comes first"
    );
    // Where nothing can have a number in between, there is nothing to skip.
    match store.events(&near, 1).await {
        Err(error) => assert_eq!(error.code(), "invalid_input"),
        Ok(_) => {
            emit(&*store, vec![event(1)]).await;
            assert_eq!(store.events(&near, 10).await.unwrap().events.len(), 1);
        }
    }
}

async fn trimmed_events_are_told<S: Store>(store: Arc<S>) {
    let start = store.events(&EventCursor::TAIL, 1).await.unwrap().next;
    emit(&*store, (1..=3).map(event).collect()).await;
    assert_eq!(store.trim_events(TimestampMs(3), 10).await.unwrap(), 2);
    let Err(EngineError::CursorExpired { resume_from }) = store.events(&start, 10).await else {
        panic!("an expired cursor is refused");
    };
    assert_eq!(store.events(&resume_from, 10).await.unwrap().events.len(), 1);
}

async fn a_listener_wakes_after_the_commit<S: Store>(store: Arc<S>) {
    let woken = store.listen(&Topic::Lane(lane_id("default")));
    write(&*store, vec![execution(1, TimestampMs(1)).into()]).await;
    woken.await;
    let seen = store.list(&[Index::Created], &Bounds::first(1)).await.unwrap();
    assert_eq!(seen.len(), 1);
}

async fn a_consistent_index_needs_no_repair<S: Store>(store: Arc<S>) {
    write(&*store, vec![execution(1, TimestampMs(1)).into(), attempt(1, 0).into()]).await;
    write(&*store, vec![attempt(1, 1).into(), settlement(1).into()]).await;
    let (looked_at, repaired) = store.reindex(Partition::flow(HOME)).await.unwrap();
    assert_eq!((looked_at, repaired), (4, 0), "all that belongs to an execution is looked at");
}

/// Loads one record inside a transaction.
struct Load(Key);

#[async_trait::async_trait]
impl Op for Load {
    type Out = Option<Record>;

    fn home(&self) -> Partition {
        self.0.partition
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        Ok(tx.load(std::slice::from_ref(&self.0)).await?.pop().flatten())
    }
}

async fn load<S: Store>(store: &S, key: Key) -> Option<Record> {
    store.transact(Arc::new(Load(key))).await.unwrap()
}

async fn a_record_that_is_replaced_unread_is_read_as_it_is<S: Store>(store: Arc<S>) {
    let lane = |state, reason: &str| Lane {
        namespace: Namespace::new("acme").unwrap(),
        lane: lane_id("default"),
        state,
        since: TimestampMs(1),
        reason: reason.to_owned(),
    };
    let (first, second) = (lane(LaneState::Active, ""), lane(LaneState::Paused, "lunch"));
    let key = Key::lane(first.namespace.clone(), first.lane.clone());
    write(&*store, vec![first.into()]).await;
    write(&*store, vec![second.clone().into()]).await;
    assert_eq!(load(&*store, key.clone()).await, Some(second.into()));
    store.transact(Arc::new(Write { deletes: vec![key.clone()], ..Write::default() })).await.unwrap();
    assert_eq!(load(&*store, key).await, None);
}

async fn what_belongs_to_an_execution_does_not_need_it<S: Store>(store: Arc<S>) {
    let key = Key::attempt(execution_id(1), AttemptIndex(0));
    let attempts = Index::AttemptsOf(execution_id(1));
    let remove = |key: &Key| Arc::new(Write { deletes: vec![key.clone()], ..Write::default() });
    write(&*store, vec![attempt(1, 0).into()]).await;
    for _ in 0..2 {
        write(&*store, vec![execution(1, TimestampMs(1)).into()]).await;
        assert_eq!(load(&*store, key.clone()).await, Some(attempt(1, 0).into()), "with an execution made after it");
        assert_eq!(store.read(std::slice::from_ref(&key)).await.unwrap(), [Some(attempt(1, 0).into())]);
        assert_eq!(store.count(&attempts).await.unwrap(), 1);
        store.transact(remove(&Key::execution(execution_id(1)))).await.unwrap();
        assert_eq!(load(&*store, key.clone()).await, Some(attempt(1, 0).into()), "with its execution gone");
        assert_eq!(store.count(&attempts).await.unwrap(), 1);
    }
    write(&*store, vec![execution(1, TimestampMs(1)).into(), attempt(1, 0).into()]).await;
    assert_eq!(store.list(&[attempts], &Bounds::first(10)).await.unwrap().len(), 1, "replaced, not doubled");
    store.transact(remove(&key)).await.unwrap();
    assert_eq!(load(&*store, key).await, None);
}
