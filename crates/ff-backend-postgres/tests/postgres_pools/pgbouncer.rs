//! A store behind PgBouncer in session mode.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use ff_backend_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use ff_core::backend::{Attempts, Inspection};
use ff_core::error::ErrorClass;
use ff_core::state::PublicState;
use ff_engine::{Engine, Settings};
use ff_test_servers::pgbouncer::PgBouncer;
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use futures_util::future::join_all;

use crate::server;
use crate::work::{PATIENCE, claim, create, patience_ms};

const CALLERS: usize = 20;

/// Where the other process finds the store.
const SITE: &str = "FF_BEHIND_POOLER";

static POOLER: LazyLock<(PgBouncer, PostgresServer)> = LazyLock::new(|| {
    let server = server::start(PostgresServerOptions::default());
    let settings = [("pool_mode", "session"), ("default_pool_size", "100")];
    let pooler = PgBouncer::start(&server, &settings).unwrap_or_else(|error| panic!("{error}"));
    (pooler, server)
});

/// The address of a new store behind the pooler.
fn fresh() -> String {
    format!("{}?schema={}", POOLER.0.url(), server::fresh_name().as_str())
}

async fn open(url: &str) -> PostgresBackend {
    let store = PostgresStore::connect(PostgresOptions::new(url).unwrap()).await.unwrap();
    Engine::open(store, Settings::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_of_many_callers_is_done_once() {
    let engine = Arc::new(open(&fresh()).await);
    let caller = |number: usize| {
        let engine = Arc::clone(&engine);
        async move {
            let mut created = Vec::new();
            for _ in 0..5 {
                created.push(create(&engine).await);
                let handle = claim(&engine, number).await;
                engine.complete(&handle, Some("done".into())).await.unwrap();
            }
            created
        }
    };
    let callers: Vec<_> = (0..CALLERS).map(|number| tokio::spawn(caller(number))).collect();
    let created: BTreeSet<_> = join_all(callers).await.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(created.len(), CALLERS * 5);
    for id in created {
        let found = engine.describe_execution(id).await.unwrap().unwrap();
        assert_eq!((found.public_state, found.total_attempt_count), (PublicState::Completed, 1));
    }
}

/// Runs in a process of its own: waits for work, does it, and stays until its input ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the other process"]
async fn waits_in_another_process() {
    let engine = open(&std::env::var(SITE).expect("started by the other test")).await;
    println!("\nwaits");
    let handle = claim(&engine, 0).await;
    println!("\nclaimed");
    engine.complete(&handle, None).await.unwrap();
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_wakes_who_waits_in_another_process() {
    let url = fresh();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "pgbouncer::waits_in_another_process", "--nocapture"])
        .env(SITE, &url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let engine = open(&url).await;
    assert!(lines.any(|line| line == "waits"), "the other process lives");
    let began = Instant::now();
    let id = create(&engine).await;
    assert!(lines.any(|line| line == "claimed"), "the other process gets the work");
    assert!(engine.await_outcome(id, patience_ms()).await.unwrap().is_some(), "its end is news here");
    assert!(began.elapsed() < PATIENCE, "woken only after {:?}", began.elapsed());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn a_parameter_that_the_pooler_refuses_is_named() {
    let url = format!("{}?options=-cstatement_timeout%3D5s", POOLER.0.url());
    let error = PostgresStore::connect(PostgresOptions::new(&url).unwrap()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Terminal, "{error}");
    let told = error.to_string();
    assert!(told.contains("parameter: options") && told.contains("ignore_startup_parameters"), "{told}");
}
