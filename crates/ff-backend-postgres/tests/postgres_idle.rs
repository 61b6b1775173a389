//! What a process without work costs the server, as the server itself counts.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_backend_postgres::{PostgresOptions, PostgresStore};
use ff_core::backend::EngineBackend;
use ff_engine::{Engine, Settings, TimerOptions, Timers};
use ff_sdk::{Client, Context, Task, TaskResult, Worker};
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};

/// Workers that wait for work.
const WORKERS: usize = 5;

/// Statements that a process may run in a minute, heartbeats included.
const PER_MINUTE_MAX: usize = 60;

/// Everything that is done again and again is done at least once within it: heartbeats, polls, and looks that no news call for.
const WINDOW: Duration = Duration::from_secs(30);

/// How long work may take to begin when it comes to those who rest: far less than until they look by themselves.
const START_MAX: Duration = Duration::from_secs(5);

const SCHEMA: &str = "idle";

/// Those of the store, whoever ran them; what this test asks itself comes in other sessions and words.
const COUNTED: &str = "
    SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
    WHERE query NOT LIKE '%pg_stat_statements%'";
const BUSIEST: &str = "
    SELECT string_agg(calls || ' ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 90), E'\\n' ORDER BY calls DESC)
    FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'";

fn start() -> PostgresServer {
    let options = PostgresServerOptions::default().setting("shared_preload_libraries", "pg_stat_statements");
    let server = server::start(options);
    server.run("CREATE EXTENSION pg_stat_statements").unwrap();
    server
}

async fn open(server: &PostgresServer) -> Arc<Engine<PostgresStore>> {
    let options = PostgresOptions::new(&server.url()).unwrap().schema(SCHEMA).unwrap();
    Arc::new(Engine::open(PostgresStore::connect(options).await.unwrap(), Settings::default()).await.unwrap())
}

async fn nothing(_context: Context, (): ()) -> TaskResult<()> {
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the figures are for people")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_workers_without_work_ask_for_little_and_begin_at_once() {
    let server = start();
    let engine = open(&server).await;
    let backend = Arc::clone(&engine) as Arc<dyn EngineBackend>;
    let timers = Timers::start(engine, TimerOptions::default());
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(Worker::builder(Arc::clone(&backend)).on("nothing", nothing).start().await.unwrap());
    }
    let client = Client::new(backend, ff_sdk::DEFAULT_NAMESPACE).unwrap();
    // Everything has run once.
    for _ in 0..WORKERS {
        client.submit(Task::new("nothing", &())).await.unwrap().result::<()>().await.unwrap();
    }
    server.run("SELECT pg_stat_statements_reset()").unwrap();
    tokio::time::sleep(WINDOW).await;
    let counted: usize = server.run(COUNTED).unwrap().trim().parse().unwrap();
    let busiest = server.run(BUSIEST).unwrap();
    println!("{counted} statements in {WINDOW:?}\n{busiest}");
    let most = PER_MINUTE_MAX * WINDOW.as_secs() as usize / 60;
    assert!((1..=most).contains(&counted), "{counted} statements in {WINDOW:?}, at most {most} may be\n{busiest}");

    let submitted = Instant::now();
    client.submit(Task::new("nothing", &())).await.unwrap().result::<()>().await.unwrap();
    assert!(submitted.elapsed() < START_MAX, "news wake them, after {:?}", submitted.elapsed());
    for worker in workers {
        worker.stop().await;
    }
    timers.stop().await;
}
