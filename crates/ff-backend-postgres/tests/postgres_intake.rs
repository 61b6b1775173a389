//! Executions and flows that are created in transactions of the caller's own.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, Runtime};
use ff_backend_postgres::{CreateIn, PostgresBackend, PostgresOptions, PostgresStore};
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::flows::{AddExecutionToFlowArgs, CreateFlowArgs};
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult, SetLaneStateArgs};
use ff_core::backend::{Attempts, Claims, Flows, Ingress, Inspection};
use ff_core::capability::CapabilitySet;
use ff_core::cursor::EventCursor;
use ff_core::error::{Entity, StateKind};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FlowId, LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::partition::PartitionCounts;
use ff_core::state::{LaneState, PublicState};
use ff_core::{EngineError, TimestampMs};
use ff_engine::event::EventBody;
use ff_engine::records::Record;
use ff_engine::store::{Inspect, Store};
use ff_engine::{Engine, Settings, TimerOptions, Timers};
use futures_util::future::{join, join_all};
use tokio_postgres::{Client, IsolationLevel, NoTls};
use uuid::Uuid;

/// Longer than anything here takes, and shorter than the pause after which everybody looks in any case.
const PATIENCE: Duration = Duration::from_secs(15);

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("an answer in time")
}

/// Lets others run until something holds.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

fn options() -> PostgresOptions {
    server::options().schema(server::fresh_name().as_str()).unwrap()
}

async fn open(options: &PostgresOptions) -> Arc<PostgresBackend> {
    let store = PostgresStore::connect(options.clone()).await.unwrap();
    Arc::new(Engine::open(store, Settings::default()).await.unwrap())
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The application of a caller: a connection of its own, and a table.
async fn caller() -> Client {
    connect(&server::url()).await
}

fn namespace() -> Namespace {
    Namespace::new("acme").unwrap()
}

fn lane() -> LaneId {
    LaneId::new("orders").unwrap()
}

fn task() -> CreateExecutionArgs {
    CreateExecutionArgs::new(None, namespace(), lane(), "ship")
}

fn keyed() -> CreateExecutionArgs {
    CreateExecutionArgs { idempotency_key: Some("order-7".to_owned()), ..task() }
}

async fn claim_many(engine: &PostgresBackend, count: u32) -> Vec<Handle> {
    let instance = WorkerInstanceId::new("w-1").unwrap();
    let max_wait_ms = u64::try_from(PATIENCE.as_millis()).ok();
    let policy = ClaimPolicy { max_wait_ms, ..ClaimPolicy::new(WorkerId::new("w").unwrap(), instance, 60_000) };
    engine.claim_many(&lane(), &CapabilitySet::default(), policy, count).await.unwrap()
}

/// Waits for work.
async fn claim(engine: &PostgresBackend) -> Handle {
    claim_many(engine, 1).await.pop().expect("there is work")
}

async fn state(engine: &PostgresBackend, id: ExecutionId) -> Option<PublicState> {
    engine.read_execution_state(id).await.unwrap()
}

/// How many executions there are, and how many submissions wait to be taken in.
async fn counts(engine: &PostgresBackend) -> (usize, usize) {
    let records = engine.store().records().await.unwrap();
    let count = |is_meant: fn(&Record) -> bool| records.iter().filter(|record| is_meant(record)).count();
    (count(|record| matches!(record, Record::Execution(_))), count(|record| matches!(record, Record::Intake(_))))
}

/// Takes in what is there; says how much of it.
async fn take_in(engine: &PostgresBackend) -> usize {
    let mut taken_in = 0;
    loop {
        let report = in_time(Box::pin(engine.run_due(TimestampMs(i64::MAX), 1_000))).await.unwrap();
        assert_eq!(report.failed, 0);
        taken_in += report.handled;
        if counts(engine).await.1 == 0 {
            return taken_in;
        }
    }
}

async fn close_lane(engine: &PostgresBackend) {
    let (namespace, lane_id) = (namespace(), lane());
    let args = SetLaneStateArgs { namespace, lane_id, state: LaneState::Disabled, reason: String::new() };
    engine.set_lane_state(args).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_brings_work_to_a_worker_that_waits_idle_in_another_process() {
    let options = options();
    let (site, submitter) = (open(&options).await, open(&options).await);
    let timers = Timers::start(Arc::clone(&site), TimerOptions::default());
    // Nothing but news will make them look.
    in_time(until(|| timers.health().due.last_pass.is_some())).await;
    let (news, mut client) = (in_time(claim(&site)), caller().await);
    let submitted = async {
        let tx = client.transaction().await.unwrap();
        let id = submitter.create_execution_in(&tx, task()).await.unwrap();
        assert_eq!(state(&submitter, id).await, None, "nobody knows of it before the commit");
        tx.commit().await.unwrap();
        id
    };
    let (handle, id) = join(news, submitted).await;
    assert_eq!(handle.peek().unwrap().execution_id, id);
    site.complete(&handle, None).await.unwrap();
    assert_eq!(counts(&site).await, (1, 0));
    timers.stop().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_transaction_that_is_rolled_back() {
    let engine = open(&options()).await;
    let mut client = caller().await;
    let tx = client.transaction().await.unwrap();
    let id = engine.create_execution_in(&tx, task()).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(counts(&engine).await, (0, 0));
    let missing = engine.await_outcome(id, 0).await.unwrap_err();
    assert!(matches!(missing, EngineError::NotFound { entity: Entity::Execution }), "{missing}");

    let mut tx = client.transaction().await.unwrap();
    let kept = engine.create_execution_in(&tx, task()).await.unwrap();
    let savepoint = tx.savepoint("later").await.unwrap();
    let dropped = engine.create_execution_in(&savepoint, task()).await.unwrap();
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(take_in(&engine).await, 1);
    assert_eq!((state(&engine, kept).await, state(&engine, dropped).await), (Some(PublicState::Waiting), None));
}

/// Work of all partitions goes through its whole life.
async fn work_everywhere(engine: &PostgresBackend) -> usize {
    let partitions = PartitionCounts::default().flow.get();
    let args = |partition| CreateExecutionArgs {
        execution_id: Some(ExecutionId::new(partition, Uuid::new_v4())),
        idempotency_key: Some(format!("key {partition}")),
        ..task()
    };
    engine.create_executions((0..partitions).map(args).collect()).await.unwrap();
    let mut done = 0;
    while done < usize::from(partitions) {
        let handles = claim_many(engine, 64).await;
        done += handles.len();
        for completed in join_all(handles.iter().map(|handle| engine.complete(handle, None))).await {
            completed.unwrap();
        }
    }
    done
}

async fn completions(engine: &PostgresBackend, mut cursor: EventCursor) -> usize {
    let mut found = 0;
    loop {
        let page = engine.store().events(&cursor, 1_000).await.unwrap();
        if page.events.is_empty() {
            return found;
        }
        found += page.events.iter().filter(|(_, event)| matches!(event.body, EventBody::Completion { .. })).count();
        cursor = page.next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_stays_open_holds_up_neither_work_nor_events() {
    let engine = open(&options()).await;
    let mut client = caller().await;
    let tx = client.build_transaction().isolation_level(IsolationLevel::Serializable).start().await.unwrap();
    let partitions = PartitionCounts::default().flow.get();
    let mut ids = Vec::new();
    for partition in 0..partitions {
        let execution_id = Some(ExecutionId::new(partition, Uuid::new_v4()));
        // Keys that the others use as well: nobody waits to know which of them is first.
        let idempotency_key = Some(format!("key {partition}")).filter(|_| partition % 2 == 0);
        let args = CreateExecutionArgs { execution_id, idempotency_key, ..task() };
        ids.push(engine.create_execution_in(&tx, args).await.unwrap());
    }
    let begin = engine.store().events(&EventCursor::TAIL, 0).await.unwrap().next;
    let done = in_time(work_everywhere(&engine)).await;
    assert_eq!(done, usize::from(partitions));
    assert_eq!(in_time(completions(&engine, begin)).await, done);
    let (_, repaired) = in_time(engine.store().reindex(ids[3].partition())).await.unwrap();
    assert_eq!(repaired, 0);
    // Somebody else asks for the same id, and does not wait either.
    let mut other = caller().await;
    let other = other.transaction().await.unwrap();
    let same = CreateExecutionArgs { execution_id: Some(ids[1]), ..task() };
    in_time(engine.create_execution_in(&other, same)).await.unwrap();
    other.rollback().await.unwrap();

    tx.commit().await.unwrap();
    assert_eq!(take_in(&engine).await, ids.len());
    for (at, id) in ids.into_iter().enumerate() {
        let expected = (at % 2 == 1).then_some(PublicState::Waiting);
        assert_eq!(state(&engine, id).await, expected, "of those with a key the earlier one stands: {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_taken_in_once_though_two_processes_race() {
    const MANY: usize = 300;
    let options = options();
    let (one, other) = (open(&options).await, open(&options).await);
    let mut client = caller().await;
    let tx = client.transaction().await.unwrap();
    let mut ids = BTreeSet::new();
    for _ in 0..MANY {
        ids.insert(one.create_execution_in(&tx, task()).await.unwrap());
    }
    tx.commit().await.unwrap();
    let timers = [&one, &other].map(|engine| Timers::start(Arc::clone(engine), TimerOptions::default()));
    let mut claimed = BTreeSet::new();
    while claimed.len() < MANY {
        for handle in in_time(claim_many(&one, 100)).await {
            assert!(claimed.insert(handle.peek().unwrap().execution_id));
            one.complete(&handle, None).await.unwrap();
        }
    }
    assert_eq!(claimed, ids);
    let handled = || timers.iter().map(|timers| timers.health().handled).sum::<u64>();
    in_time(until(|| handled() >= MANY as u64)).await;
    assert_eq!((handled(), counts(&one).await), (MANY as u64, (MANY, 0)));
    for timers in timers {
        timers.stop().await;
    }
}

#[tokio::test]
async fn an_execution_with_the_same_key_stands_and_no_second_one_comes_to_be() {
    let engine = open(&options()).await;
    let CreateExecutionResult::Created { execution_id, .. } = engine.create_execution(keyed()).await.unwrap() else {
        panic!("it is new")
    };
    let mut client = caller().await;
    let tx = client.transaction().await.unwrap();
    let id = engine.create_execution_in(&tx, keyed()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(counts(&engine).await, (1, 1));
    assert_eq!(take_in(&engine).await, 1);
    assert_eq!(counts(&engine).await, (1, 0));
    assert_eq!((state(&engine, id).await, state(&engine, execution_id).await), (None, Some(PublicState::Waiting)));
}

#[tokio::test]
async fn a_refusal_leaves_the_transaction_as_it_was() {
    let engine = open(&options()).await;
    close_lane(&engine).await;
    let mut client = caller().await;
    let tx = client.transaction().await.unwrap();
    let refusal = engine.create_execution_in(&tx, task()).await.unwrap_err();
    assert!(matches!(refusal, EngineError::State(StateKind::LaneClosed)), "{refusal}");
    let flow_id = FlowId::from_uuid(Uuid::new_v4());
    let nameless = CreateFlowArgs { flow_id, flow_kind: String::new(), namespace: namespace() };
    let refusal = engine.create_flow_in(&tx, nameless).await.unwrap_err();
    assert!(matches!(refusal, EngineError::Validation { .. }), "{refusal}");
    let open_lane = CreateExecutionArgs { lane_id: LaneId::new("other").unwrap(), ..task() };
    let id = engine.create_execution_in(&tx, open_lane).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(take_in(&engine).await, 1);
    assert_eq!(state(&engine, id).await, Some(PublicState::Waiting));
}

#[tokio::test]
async fn a_lane_that_closes_while_the_transaction_is_open_comes_too_late() {
    let engine = open(&options()).await;
    let mut client = caller().await;
    let tx = client.transaction().await.unwrap();
    let id = engine.create_execution_in(&tx, task()).await.unwrap();
    close_lane(&engine).await;
    tx.commit().await.unwrap();
    assert_eq!(take_in(&engine).await, 1);
    assert_eq!(state(&engine, id).await, Some(PublicState::Waiting));
}

#[tokio::test]
async fn a_flow_and_its_members_come_to_be_together() {
    let engine = open(&options()).await;
    let flow_id = FlowId::from_uuid(Uuid::new_v4());
    let home = PartitionCounts::default().flow_index(flow_id);
    let mut client = caller().await;
    let tx = client.transaction().await.unwrap();
    let args = CreateFlowArgs { flow_id, flow_kind: "order".to_owned(), namespace: namespace() };
    assert_eq!(engine.create_flow_in(&tx, args).await.unwrap(), flow_id);
    let mut members = Vec::new();
    for _ in 0..3 {
        let args = CreateExecutionArgs { execution_id: Some(ExecutionId::new(home, Uuid::new_v4())), ..task() };
        members.push(engine.create_execution_in(&tx, args).await.unwrap());
    }
    assert!(engine.describe_flow(flow_id).await.unwrap().is_none());
    tx.commit().await.unwrap();
    assert_eq!(take_in(&engine).await, 4);
    for execution_id in members {
        engine.add_execution_to_flow(AddExecutionToFlowArgs { flow_id, execution_id }).await.unwrap();
    }
    let flow = engine.describe_flow(flow_id).await.unwrap().unwrap();
    assert_eq!((&*flow.flow_kind, flow.node_count), ("order", 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_committed_before_a_process_died_is_taken_in_by_the_next() {
    let options = options();
    let engine = open(&options).await;
    let mut client = caller().await;
    let tx = client.transaction().await.unwrap();
    let id = engine.create_execution_in(&tx, task()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(engine.await_outcome(id, 0).await.unwrap(), None, "it is on its way");
    drop(engine);

    let next = open(&options).await;
    assert_eq!(counts(&next).await, (0, 1));
    let timers = Timers::start(Arc::clone(&next), TimerOptions::default());
    let work = async {
        let handle = claim(&next).await;
        next.complete(&handle, Some("shipped".into())).await.unwrap();
    };
    let (outcome, ()) = in_time(join(next.await_outcome(id, 14_000), work)).await;
    assert_eq!(&*outcome.unwrap().unwrap().result.unwrap(), b"shipped");
    timers.stop().await;
}

#[tokio::test]
async fn the_session_of_the_caller_may_have_any_settings_and_few_rights() {
    let options = options();
    let engine = open(&options).await;
    let schema = options.schema_name().as_str();
    let role = format!("caller_{schema}");
    let admin = caller().await;
    let rights = format!(
        "CREATE ROLE {role} LOGIN;
         GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT ON {schema}.deployment TO {role};
         GRANT INSERT ON {schema}.record, {schema}.entry TO {role};
         CREATE SCHEMA {role};
         CREATE FUNCTION {role}.refuse(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false';
         CREATE OPERATOR {role}.= (FUNCTION = {role}.refuse, LEFTARG = bigint, RIGHTARG = bigint);
         CREATE FUNCTION {role}.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1 / 0';
         GRANT USAGE ON SCHEMA {role} TO {role}"
    );
    admin.batch_execute(&rights).await.unwrap();
    let manager = Manager::new(server::url().replace("postgres@", &format!("{role}@")).parse().unwrap(), NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(1).runtime(Runtime::Tokio1).build().unwrap();
    let mut client = pool.get().await.unwrap();
    let settings = format!(
        "SET search_path = {role}, pg_catalog; SET standard_conforming_strings = off;
         SET default_transaction_isolation = 'repeatable read'; SET statement_timeout = '10s'"
    );
    client.batch_execute(&settings).await.unwrap();
    let tx = client.transaction().await.unwrap();
    engine.create_execution_in(&tx, task()).await.unwrap();
    tx.commit().await.unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    engine.create_execution_in(&client, task()).await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(take_in(&engine).await, 2);

    admin.batch_execute(&format!("REVOKE INSERT ON {schema}.entry FROM {role}")).await.unwrap();
    let denied = engine.create_execution_in(&client, task()).await.unwrap_err().to_string();
    assert!(denied.contains("Grant it"), "{denied}");
    assert_eq!(counts(&engine).await, (2, 0));
}

#[tokio::test]
async fn what_was_admitted_before_needs_no_connection_but_that_of_the_transaction() {
    let manager = Manager::new(server::url().parse().unwrap(), NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(1).runtime(Runtime::Tokio1).build().unwrap();
    let store = PostgresStore::from_pool(pool.clone(), options()).await.unwrap();
    let engine: PostgresBackend = Engine::open(store, Settings::default()).await.unwrap();
    let (id, intake) = engine.admit_execution(task()).await.unwrap();
    let mut client = pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    in_time(engine.store().put_in(&tx, &intake)).await.unwrap();
    tx.commit().await.unwrap();
    drop(client);
    assert_eq!(take_in(&engine).await, 1);
    assert_eq!(state(&engine, id).await, Some(PublicState::Waiting));
}

#[tokio::test]
async fn a_transaction_in_another_database_is_refused() {
    let options = options();
    let (engine, schema) = (open(&options).await, options.schema_name().as_str());
    let (empty, twin) = (format!("empty_{schema}"), format!("twin_{schema}"));
    let admin = caller().await;
    let url = |database: &str| format!("{}/{database}", server::url().rsplit_once('/').unwrap().0);
    for database in [&empty, &twin] {
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    }
    let other = open(&PostgresOptions::new(&url(&twin)).unwrap().schema(schema).unwrap()).await;

    let mut client = connect(&url(&empty)).await;
    let tx = client.transaction().await.unwrap();
    let refusal = engine.create_execution_in(&tx, task()).await.unwrap_err().to_string();
    assert!(refusal.contains("not in the database of the store") && refusal.contains(schema), "{refusal}");

    let mut client = connect(&url(&twin)).await;
    let tx = client.transaction().await.unwrap();
    let refusal = engine.create_execution_in(&tx, task()).await.unwrap_err();
    assert!(matches!(refusal, EngineError::Validation { .. }), "{refusal}");
    assert!(refusal.to_string().contains("not in the database of the store"), "{refusal}");
    other.create_execution_in(&tx, task()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((counts(&engine).await, counts(&other).await), ((0, 0), (0, 1)));
}
