//! What a process without work costs its servers, as they count themselves: commands that functions run are among them.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_core::backend::EngineBackend;
use ff_engine::{Engine, Settings, TimerOptions, Timers};
use ff_sdk::{Client, Context, Task, TaskResult, Worker};
use ff_test_servers::valkey::ValkeyServer;

/// Workers that wait for work.
const WORKERS: usize = 5;

/// Commands that a process may cost a single server in a second, heartbeats included.
const PER_SECOND_MAX: u64 = 10;

/// Commands that it may cost each primary of a cluster: whoever looks at a whole lane there looks at all shards.
const PER_SECOND_OF_CLUSTER_MAX: u64 = 25;

/// Everything that is done again and again is done at least once within it: heartbeats, polls, and looks that no news call for.
const WINDOW: Duration = Duration::from_secs(30);

/// How long work may take to begin when it comes to those who rest: far less than until they look by themselves.
const START_MAX: Duration = Duration::from_secs(5);

/// What this test asks, and what servers ask each other.
const NOT_OURS: [&str; 4] = ["info", "config|resetstat", "replconf", "ping"];

async fn nothing(_context: Context, (): ()) -> TaskResult<()> {
    Ok(())
}

/// How often each command ran, those inside of functions included.
fn counted(server: &ValkeyServer) -> BTreeMap<String, u64> {
    let told = server.ask(&["INFO", "commandstats"]).unwrap();
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        (!NOT_OURS.contains(&name)).then(|| (name.to_owned(), calls))
    };
    told.lines().filter_map(line).collect()
}

/// What each of the servers runs in a window in which nobody has work.
async fn idle(servers: &[&ValkeyServer], options: ValkeyOptions) -> Vec<BTreeMap<String, u64>> {
    let store = ValkeyStore::connect(options).await.unwrap();
    let engine = Arc::new(Engine::open(store, Settings::default()).await.unwrap());
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
    for server in servers {
        server.ask(&["CONFIG", "RESETSTAT"]).unwrap();
    }
    tokio::time::sleep(WINDOW).await;
    let counts = servers.iter().map(|server| counted(server)).collect();

    let submitted = Instant::now();
    client.submit(Task::new("nothing", &())).await.unwrap().result::<()>().await.unwrap();
    assert!(submitted.elapsed() < START_MAX, "news wake them, after {:?}", submitted.elapsed());
    for worker in workers {
        worker.stop().await;
    }
    timers.stop().await;
    counts
}

#[allow(clippy::print_stdout, reason = "the figures are for people")]
fn tell(server: &ValkeyServer, counts: &BTreeMap<String, u64>) -> u64 {
    let sum: u64 = counts.values().sum();
    let mut busiest: Vec<(&String, &u64)> = counts.iter().collect();
    busiest.sort_by_key(|(_, calls)| std::cmp::Reverse(**calls));
    println!("port {}: {:.1} commands a second: {busiest:?}", server.port(), sum as f64 / WINDOW.as_secs_f64());
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_workers_without_work_ask_little_of_a_server_and_begin_at_once() {
    let server = support::start();
    let counts = idle(&[&server], ValkeyOptions::new(&server.url()).unwrap()).await;
    let sum = tell(&server, &counts[0]);
    let most = PER_SECOND_MAX * WINDOW.as_secs();
    assert!((1..=most).contains(&sum), "{sum} commands in {WINDOW:?}, at most {most} may be: {:?}", counts[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_workers_without_work_ask_little_of_a_cluster_and_begin_at_once() {
    let cluster = support::start_cluster(0);
    let servers: Vec<&ValkeyServer> = cluster.nodes().iter().collect();
    let counts = idle(&servers, ValkeyOptions::new(&cluster.url()).unwrap()).await;
    let most = PER_SECOND_OF_CLUSTER_MAX * WINDOW.as_secs();
    for (server, counts) in servers.iter().zip(&counts) {
        let sum = tell(server, counts);
        assert!((1..=most).contains(&sum), "{sum} commands in {WINDOW:?}, at most {most} may be: {counts:?}");
    }
}
