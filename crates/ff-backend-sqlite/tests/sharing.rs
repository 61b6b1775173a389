//! What a store does with its file and with others who use it.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ff_backend_sqlite::{SqliteOptions, SqliteStore};
use ff_core::ids::{LaneId, Namespace};
use ff_core::partition::Partition;
use ff_core::state::LaneState;
use ff_core::{Result, TimestampMs};
use ff_engine::index::Topic;
use ff_engine::key::Key;
use ff_engine::records::{Lane, Record};
use ff_engine::store::{Op, Store, Tx};
use rusqlite::Connection;

fn lane(name: &str) -> Lane {
    Lane {
        namespace: Namespace::new("acme").unwrap(),
        lane: LaneId::new(name).unwrap(),
        state: LaneState::Active,
        since: TimestampMs(1),
        reason: String::new(),
    }
}

fn key(name: &str) -> Key {
    Key::lane(lane(name).namespace, lane(name).lane)
}

struct Put(Record);

#[async_trait]
impl Op for Put {
    type Out = ();

    fn home(&self) -> Partition {
        Partition::GLOBAL
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        tx.put_record(self.0.clone());
        Ok(())
    }
}

async fn put(store: &SqliteStore, name: &str) -> Result<()> {
    store.transact(Arc::new(Put(lane(name).into()))).await
}

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(SqliteOptions::file(path)).await.unwrap()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
}

#[test]
fn a_link_to_a_file_is_as_good_as_the_file() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("real.db"), directory.path().join("link.db"));
        drop(open(&file).await);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        put(&open(&link).await, "default").await.unwrap();
        assert_eq!(open(&file).await.read(&[key("default")]).await.unwrap(), [Some(lane("default").into())]);
    });
}

#[test]
fn a_closed_file_stands_alone() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("real.db");
        let store = open(&file).await;
        put(&store, "default").await.unwrap();
        store.read(&[key("default")]).await.unwrap();
        drop(store);
        let left: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["real.db"]);
    });
}

#[test]
fn a_database_of_another_application_keeps_its_settings() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("diary.db");
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE diary (entry TEXT)").unwrap();
        let before = std::fs::read(&file).unwrap();
        let refused = SqliteStore::open(SqliteOptions::file(&file)).await.unwrap_err().to_string();
        assert!(refused.contains("nothing was changed"), "{refused}");
        assert_eq!(std::fs::read(&file).unwrap(), before);
    });
}

#[test]
fn callers_of_a_locked_file_wait_together() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("real.db");
        let patience = Duration::from_millis(200);
        let store = SqliteStore::open(SqliteOptions::file(&file).busy_timeout(patience)).await.unwrap();
        let store = Arc::new(store);
        let other = Connection::open(&file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let began = Instant::now();
        let callers: Vec<_> = (0..20)
            .map(|n| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { put(&store, &format!("lane-{n}")).await })
            })
            .collect();
        for caller in callers {
            let refused = caller.await.unwrap().unwrap_err().to_string();
            assert!(refused.contains("locked"), "{refused}");
        }
        assert!(began.elapsed() < 15 * patience, "everybody waited for everybody: {:?}", began.elapsed());
        other.execute_batch("ROLLBACK").unwrap();
        put(&store, "default").await.unwrap();
    });
}

#[test]
fn the_first_listener_learns_what_another_process_wrote_next() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("real.db");
        let other = open(&file).await;
        let options = SqliteOptions::file(&file).poll_interval(Duration::from_millis(200));
        let store = SqliteStore::open(options).await.unwrap();
        let news = store.listen(&Topic::Lane(lane("default").lane));
        put(&other, "default").await.unwrap();
        tokio::time::timeout(Duration::from_secs(5), news).await.expect("the news arrive");
    });
}
