//! Lost index entries come back, and those that no record declares go away.

mod support;
#[path = "support/write.rs"]
mod write;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::Vacant;
use std::sync::Arc;

use ff_backend_postgres::{Pool, PostgresStore};
use ff_core::ids::{AttemptIndex, ExecutionId, ExecutionKind, LaneId, LeaseEpoch, Namespace};
use ff_core::partition::Partition;
use ff_core::{Blob, TimestampMs};
use ff_engine::clock::ManualClock;
use ff_engine::index::Index;
use ff_engine::key::Key;
use ff_engine::records::{Execution, ExecutionTags, NewExecution, QueueClass, Record, Settlement, Step, StreamHead};
use ff_engine::store::Store;
use uuid::Uuid;

use write::Write;

const HOME: u16 = 1;

const NOW: TimestampMs = TimestampMs(1_000);

/// More than are looked at in one go.
const STEPS: u32 = 150;

fn id(n: u128) -> ExecutionId {
    ExecutionId::new(HOME, Uuid::from_u128(n))
}

fn execution(n: u128) -> Record {
    let new = NewExecution {
        id: id(n),
        namespace: Namespace::new("acme").expect("a namespace"),
        lane: LaneId::new("default").expect("a lane"),
        class: QueueClass::plain(ExecutionKind::new("task").expect("a kind")),
        priority: 0,
        delay_until: None,
        deadline_at: None,
        budget_ids: Vec::new(),
        quota_policy_ids: Vec::new(),
        retention_ms: None,
        tagged: true,
    };
    Execution::create(new, NOW).into()
}

/// What belongs to an execution and stands in indexes.
fn belongings(n: u128) -> Vec<Record> {
    let execution = id(n);
    let tags = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
    let step = |at: u32| Step {
        execution,
        life: 0,
        name: format!("step-{at:03}"),
        value: Blob::from(b"done".to_vec()),
        saved_at: NOW,
    };
    let mut stream = StreamHead::open(execution, AttemptIndex(1), NOW);
    stream.retained = 1;
    stream.retention.expires_at = Some(TimestampMs(9_000));
    let mut out: Vec<Record> = vec![
        ExecutionTags { execution, created_at: NOW, tags, updated_at: NOW }.into(),
        Settlement { execution, epoch: LeaseEpoch(1), quotas: Vec::new(), due_at: TimestampMs(5) }.into(),
        stream.into(),
    ];
    out.extend((0..STEPS).map(|at| Record::from(step(at))));
    out
}

async fn open(schema: &str) -> PostgresStore {
    support::connect(schema, Arc::new(ManualClock::at(NOW)), support::FAST).await.expect("a fresh store opens")
}

/// How many entries stand in each of the indexes that records declare.
async fn counts(store: &PostgresStore, records: &[Record]) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for entry in records.iter().flat_map(Record::entries) {
        let name = format!("{:?}", entry.index);
        if let Vacant(place) = out.entry(name) {
            place.insert(store.count(&entry.index).await.expect("an index can be counted"));
        }
    }
    out
}

#[tokio::test]
async fn lost_entries_of_all_that_belongs_to_executions_come_back() {
    let schema = support::schema();
    let store = open(schema.name()).await;
    let mut records = Vec::new();
    for n in 1..=3 {
        records.push(execution(n));
        records.extend(belongings(n));
    }
    store.transact(Arc::new(Write(records.clone()))).await.unwrap();
    let whole = counts(&store, &records).await;
    assert!(whole.values().all(|count| *count > 0), "{whole:?}");

    for record in &records {
        assert!(!record.entries().is_empty(), "{:?} stands in an index", record.key());
        store.lose_index_entries(record.key()).await.unwrap();
    }
    let lost = counts(&store, &records).await;
    let left: Vec<_> = lost.iter().filter(|(_, count)| **count > 0).map(|(name, _)| name).collect();
    assert_eq!(
        left,
        [&format!("{:?}", Index::ExecutionsIn(Partition::flow(HOME)))],
        "which no column but the id tells"
    );

    let (looked_at, repaired) = store.reindex(Partition::flow(HOME)).await.unwrap();
    assert_eq!(looked_at as usize, records.len());
    assert!(repaired as usize >= records.len(), "{repaired} of {} or more", records.len());
    assert_eq!(counts(&store, &records).await, whole);
    assert_eq!(store.reindex(Partition::flow(HOME)).await.unwrap(), (looked_at, 0));
}

#[tokio::test]
async fn a_creation_without_an_execution_goes_with_its_own_partition() {
    let schema = support::schema();
    let store = open(schema.name()).await;
    store.transact(Arc::new(Write(vec![execution(1)]))).await.unwrap();
    // More than are looked at in one go, many of them at the same moment, in two partitions.
    let sql = format!(
        "INSERT INTO {}.created (created_at, partition, uuid, namespace)
         SELECT 1000 + n / 1500, {HOME} + n % 2, gen_random_uuid(), 'acme' FROM generate_series(1, 3000) AS n",
        schema.name()
    );
    Pool::connect(store.options()).await.unwrap().get().await.unwrap().batch_execute(&sql).await.unwrap();
    let count = async || store.count(&Index::Created).await.unwrap();
    assert_eq!(count().await, 3_001);

    assert_eq!(store.reindex(Partition::GLOBAL).await.unwrap().1, 0);
    assert_eq!(count().await, 3_001, "another family has no executions");
    assert_eq!(store.reindex(Partition::flow(HOME)).await.unwrap().1, 1_500);
    assert_eq!(count().await, 1_501, "those of another partition are not meant");
    assert_eq!(store.reindex_in_round(Partition::flow(HOME), true).await.unwrap().1, 1_500);
    assert_eq!(count().await, 1, "the first of a round is for everybody");
}

#[tokio::test]
async fn a_creation_outlives_the_loss_of_columns_in_a_round() {
    let schema = support::schema();
    let store = open(schema.name()).await;
    store.transact(Arc::new(Write(vec![execution(1)]))).await.unwrap();
    assert_eq!(store.count(&Index::Created).await.unwrap(), 1, "and so it is in its table");
    let sql = format!("UPDATE {}.execution SET created_at = NULL, lane = NULL", schema.name());
    Pool::connect(store.options()).await.unwrap().get().await.unwrap().batch_execute(&sql).await.unwrap();
    assert_eq!(store.reindex_in_round(Partition::GLOBAL, true).await.unwrap().1, 0);
    assert_eq!(store.count(&Index::Created).await.unwrap(), 1, "its record declares it");
    assert_eq!(store.reindex_in_round(Partition::flow(HOME), false).await.unwrap().1, 2);
    assert_eq!(store.read(&[Key::execution(id(1))]).await.unwrap(), [Some(execution(1))]);
}
