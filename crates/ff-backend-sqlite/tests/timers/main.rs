//! The timer service on SQLite: shared by two stores on one file, cheap while idle, and complete after its process was killed.

mod idle;
mod killed;
mod shared;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_backend_sqlite::{SqliteBackend, SqliteOptions, SqliteStore};
use ff_core::TimestampMs;
use ff_core::backend::Ingress;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_engine::{Engine, Settings, Timers};
use libtest_mimic::{Arguments, Trial};
use uuid::Uuid;

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(killed::ORDERS) {
        killed::work(&serde_json::from_str(&orders).expect("orders"));
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        Trial::test("two_stores_on_one_file_share_the_work", shared::run),
        Trial::test("an_idle_process_runs_hardly_any_statements", idle::run),
        Trial::test("a_killed_process_loses_no_timer_and_none_fires_twice", killed::run),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn finish<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(future)
}

async fn open(options: SqliteOptions) -> Arc<SqliteBackend> {
    let store = SqliteStore::open(options).await.expect("the file opens");
    Arc::new(Engine::open(store, Settings::default()).await.expect("the engine opens"))
}

fn id(n: u16) -> ExecutionId {
    ExecutionId::new(n % 256, Uuid::from_u128(u128::from(n) + 1))
}

fn submission(n: u16) -> CreateExecutionArgs {
    let namespace = Namespace::new("acme").expect("a namespace");
    CreateExecutionArgs::new(id(n), namespace, LaneId::new("default").expect("a lane"), "task")
}

/// Submits many, as many at once as share a commit.
async fn submit(engine: &Arc<SqliteBackend>, all: Vec<CreateExecutionArgs>) {
    let mut tasks = Vec::new();
    for args in all {
        let engine = Arc::clone(engine);
        tasks.push(tokio::spawn(async move { engine.create_execution(args).await }));
    }
    for task in tasks {
        task.await.expect("a task").expect("a submission");
    }
}

/// Waits until something holds that other threads are working at; how often it looks decides nothing.
async fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let brake = Instant::now();
    while !holds() {
        if brake.elapsed() > Duration::from_secs(100) {
            return Err(format!("in vain: {what}"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

async fn until_passed(timers: &Timers, at: TimestampMs) -> Result<(), String> {
    until("a pass", || timers.health().due.last_pass.is_some_and(|passed| passed >= at)).await
}
