//! Care of the file: copies, checks, giving space back, and closing and opening it.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ff_backend_sqlite::{SqliteBackend, SqliteOptions, SqliteStore, Synchronous};
use ff_core::backend::EngineBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::subscriptions::{CompletionEvent, ScannerFilter, Subscription};
use ff_core::capability::CapabilitySet;
use ff_core::cursor::EventCursor;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::state::PublicState;
use ff_core::{Blob, TimestampMs};
use ff_engine::clock::ManualClock;
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::store::{Inspect, Store};
use ff_engine::{Engine, Settings};
use futures_util::StreamExt;
use tokio::sync::mpsc;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A directory with a database of its own.
struct Place {
    directory: tempfile::TempDir,
    clock: ManualClock,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory, clock: ManualClock::at(TimestampMs(1_700_000_000_000)) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn options(&self, name: &str) -> SqliteOptions {
        SqliteOptions::file(self.path(name)).clock(Arc::new(self.clock.clone()))
    }

    async fn open(&self) -> SqliteBackend {
        open(self.options("flow.db")).await
    }
}

async fn open(options: SqliteOptions) -> SqliteBackend {
    Engine::open(SqliteStore::open(options).await.unwrap(), Settings::default()).await.unwrap()
}

fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.unwrap().block_on(future);
}

fn lane() -> LaneId {
    LaneId::new("care").unwrap()
}

async fn create(backend: &dyn EngineBackend, payload: &[u8]) -> ExecutionId {
    create_in(backend, lane(), payload).await
}

async fn create_in(backend: &dyn EngineBackend, lane: LaneId, payload: &[u8]) -> ExecutionId {
    let args = CreateExecutionArgs {
        input_payload: Blob::from(payload),
        ..CreateExecutionArgs::new(None, Namespace::new("care").unwrap(), lane, "care")
    };
    match backend.create_execution(args).await.unwrap() {
        CreateExecutionResult::Created { execution_id, .. } => execution_id,
        other @ CreateExecutionResult::Duplicate { .. } => panic!("{other:?}"),
    }
}

async fn claim(backend: &dyn EngineBackend) -> Option<Handle> {
    claim_in(backend, &lane()).await
}

async fn claim_in(backend: &dyn EngineBackend, lane: &LaneId) -> Option<Handle> {
    let (worker, instance) = (WorkerId::new("care").unwrap(), WorkerInstanceId::new("care-1").unwrap());
    let policy = ClaimPolicy::new(worker, instance, 10 * DAY_MS);
    backend.claim(lane, &CapabilitySet::default(), policy).await.unwrap()
}

/// Submits, claims and completes one.
async fn complete(backend: &dyn EngineBackend, payload: &[u8]) -> ExecutionId {
    complete_in(backend, lane(), payload).await
}

async fn complete_in(backend: &dyn EngineBackend, lane: LaneId, payload: &[u8]) -> ExecutionId {
    let id = create_in(backend, lane.clone(), payload).await;
    let handle = claim_in(backend, &lane).await.unwrap();
    backend.complete(&handle, Some(Blob::from(payload))).await.unwrap();
    id
}

async fn is_sound(backend: &SqliteBackend) {
    let report = backend.store().check().await.unwrap();
    assert!(report.is_sound() && report.records > 0, "{report:#?}");
    let (records, events) = (backend.store().records().await.unwrap(), backend.store().event_log().await.unwrap());
    let violations = ff_sim::check_dump(&records, &events);
    assert!(violations.is_empty(), "{violations:#?}");
}

async fn records(backend: &SqliteBackend) -> Vec<Record> {
    let mut records = backend.store().records().await.unwrap();
    records.sort_by_key(Record::key);
    records
}

/// Keeps submitting and completing, in a lane of its own, and tells what was acknowledged, until nobody listens.
async fn keep_busy(backend: Arc<SqliteBackend>, lane: LaneId, acknowledged: mpsc::Sender<ExecutionId>) {
    while acknowledged.send(complete_in(&*backend, lane.clone(), &[7; 600]).await).await.is_ok() {}
}

#[test]
fn a_copy_made_under_load_holds_everything_acknowledged_before() {
    run(async {
        let place = Place::new();
        let backend = Arc::new(place.open().await);
        let (told, mut heard) = mpsc::channel(1_000);
        let own_lane = |caller: u32| LaneId::new(format!("care-{caller}")).unwrap();
        let callers: Vec<_> = (0..4)
            .map(|caller| tokio::spawn(keep_busy(Arc::clone(&backend), own_lane(caller), told.clone())))
            .collect();
        drop(told);
        let mut before = Vec::new();
        while before.len() < 60 {
            before.push(heard.recv().await.unwrap());
        }
        let copy = place.path("copy.db");
        let (copied, after) = tokio::join!(backend.store().backup_to(&copy), async {
            // The load goes on meanwhile.
            heard.recv().await.unwrap()
        });
        copied.unwrap();
        drop(heard);
        for caller in callers {
            caller.await.unwrap();
        }
        let restored = open(place.options("copy.db")).await;
        is_sound(&restored).await;
        let api: &dyn EngineBackend = &restored;
        for id in &before {
            assert_eq!(api.read_execution_state(*id).await.unwrap(), Some(PublicState::Completed), "{id} is lost");
            assert_eq!(api.get_execution_result(*id).await.unwrap(), Some(Blob::from(vec![7; 600])));
        }
        assert!(!before.contains(&after));
        // It is a database like any other.
        complete(&restored, b"more").await;
        is_sound(&backend).await;
    });
}

#[test]
fn a_copy_replaces_nothing() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        complete(&backend, b"once").await;
        let path = place.path("precious.txt");
        std::fs::write(&path, "precious").unwrap();

        let refused = backend.store().backup_to(&path).await.unwrap_err().to_string();

        assert!(refused.contains("precious.txt exists; give the name of a new file"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        assert!(backend.store().backup_to(place.path("flow.db")).await.is_err());
    });
}

#[test]
fn a_copy_that_cannot_be_written_leaves_nothing_behind() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        let missing = place.path("missing").join("copy.db");

        let refused = backend.store().backup_to(&missing).await.unwrap_err().to_string();

        assert_eq!(refused.lines().count(), 1, "{refused}");
        assert!(refused.contains("cannot be opened"), "{refused}");
        backend.store().backup_to(place.path("copy.db")).await.unwrap();
        let names: Vec<_> =
            std::fs::read_dir(place.directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name.to_str().unwrap().contains(".db")), "{names:?}");
        assert!(!names.iter().any(|name| name.to_str().unwrap().contains("unfinished")), "{names:?}");
    });
}

#[test]
fn a_database_in_memory_can_be_kept() {
    run(async {
        let place = Place::new();
        let backend = open(SqliteOptions::memory().clock(Arc::new(place.clock.clone()))).await;
        complete(&backend, b"once").await;

        backend.store().backup_to(place.path("flow.db")).await.unwrap();

        assert_eq!(records(&place.open().await).await, records(&backend).await);
    });
}

#[test]
fn a_check_finds_a_damaged_record() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        let id = complete(&backend, b"once").await;
        is_sound(&backend).await;

        backend.store().damage(Key::execution(id)).await.unwrap();

        let report = backend.store().check().await.unwrap();
        assert!(report.problems.iter().any(|problem| problem.contains(&id.uuid().to_string())), "{report:?}");
    });
}

#[test]
fn a_check_finds_lost_entries_and_reconciling_restores_them() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        let id = create(&backend, b"once").await;

        backend.store().lose_index_entries(Key::execution(id)).await.unwrap();

        let report = backend.store().check().await.unwrap();
        assert!(report.problems.iter().any(|problem| problem.contains("index entries")), "{report:?}");
        assert_eq!(claim(&backend).await, None);
        backend.store().reindex(id.partition()).await.unwrap();
        is_sound(&backend).await;
        assert!(claim(&backend).await.is_some());
    });
}

#[test]
fn a_round_removes_entries_that_nothing_declares_when_it_begins() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        create(&backend, b"once").await;
        drop(backend);
        let db = rusqlite::Connection::open(place.path("flow.db")).unwrap();
        let stray = "INSERT INTO entry SELECT list, major + 1, tie, key FROM entry LIMIT 1";
        assert_eq!(db.execute(stray, []).unwrap(), 1);
        drop(db);

        let backend = place.open().await;
        let repaired = async |is_first| {
            let partition = ff_core::partition::Partition::flow(3);
            backend.store().reindex_in_round(partition, is_first).await.unwrap().1
        };
        assert_eq!(repaired(false).await, 0);
        assert!(!backend.store().check().await.unwrap().is_sound());
        assert_eq!(repaired(true).await, 1);
        is_sound(&backend).await;
    });
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn space_is_given_back_after_a_purge() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        for _ in 0..60 {
            complete(&backend, &[7; 20_000]).await;
        }
        drop(backend);
        let full = size(&place.path("flow.db"));
        let backend = place.open().await;
        place.clock.advance(10 * DAY_MS);
        while backend.run_due(TimestampMs(i64::MAX), 1_000).await.unwrap().handled > 0 {}

        let freed = backend.store().shrink().await.unwrap();

        is_sound(&backend).await;
        assert_eq!(backend.store().shrink().await.unwrap(), 0, "everything was given back");
        drop(backend);
        let small = size(&place.path("flow.db"));
        assert!(freed > 100 && small * 4 < full, "{freed} pages: {full} bytes became {small}");
    });
}

#[test]
fn opening_again_finds_everything() {
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        run(async move {
            let place = Place::new();
            let backend = open(place.options("flow.db").synchronous(synchronous)).await;
            for _ in 0..20 {
                complete(&backend, b"once").await;
            }
            create(&backend, b"again").await;
            let before = (records(&backend).await, backend.store().event_log().await.unwrap());
            drop(backend);
            let names: Vec<_> =
                std::fs::read_dir(place.directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
            assert_eq!(names, ["flow.db"], "a closed database is one file");

            let backend = place.open().await;

            assert_eq!(records(&backend).await, before.0);
            assert_eq!(backend.store().event_log().await.unwrap(), before.1);
            is_sound(&backend).await;
        });
    }
}

#[test]
fn a_handle_is_good_after_opening_again() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        let id = create(&backend, b"once").await;
        let handle = claim(&backend).await.unwrap();
        drop(backend);

        let backend = place.open().await;
        let api: &dyn EngineBackend = &backend;
        api.renew(&handle).await.unwrap();
        api.complete(&handle, None).await.unwrap();

        assert_eq!(api.read_execution_state(id).await.unwrap(), Some(PublicState::Completed));
    });
}

async fn feed(backend: &dyn EngineBackend, cursor: EventCursor) -> Subscription<CompletionEvent> {
    backend.subscribe_completion(cursor, &ScannerFilter::default()).await.unwrap()
}

async fn next(feed: &mut Subscription<CompletionEvent>) -> CompletionEvent {
    tokio::time::timeout(Duration::from_secs(30), feed.next()).await.expect("an event").unwrap().unwrap()
}

#[test]
fn a_feed_goes_on_where_it_was_after_opening_again() {
    run(async {
        let place = Place::new();
        let backend = place.open().await;
        let mut events = feed(&backend, EventCursor::TAIL).await;
        let first = complete(&backend, b"first").await;
        let seen = next(&mut events).await;
        assert_eq!(seen.execution_id, first);
        let second = complete(&backend, b"second").await;
        drop((events, backend));

        let backend = place.open().await;
        let third = complete(&backend, b"third").await;
        let mut events = feed(&backend, seen.cursor).await;

        assert_eq!(next(&mut events).await.execution_id, second);
        assert_eq!(next(&mut events).await.execution_id, third);
    });
}
