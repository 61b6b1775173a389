//! A worker in a process of its own is killed in the middle of its work; another worker takes over when its lease has run out.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use flowfabric::{Context, FlowFabric, RunningWorker, Task, TaskResult};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const LEASE: Duration = Duration::from_secs(1);

/// How long another worker may take at most, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(10);

async fn work(context: Context, doomed: bool) -> TaskResult<u32> {
    println!("{} works, attempt {}", if doomed { "the first worker" } else { "another one" }, context.attempt());
    if doomed {
        std::future::pending::<()>().await;
    }
    Ok(context.attempt())
}

async fn worker(fabric: &FlowFabric, is_doomed: bool) -> flowfabric::Result<RunningWorker> {
    let handler = move |context, _input: ()| work(context, is_doomed);
    fabric.worker().lease_ttl(LEASE).on("work", handler).start().await
}

/// The process that will be killed.
async fn doomed(address: &str) -> flowfabric::Result<()> {
    let fabric = FlowFabric::open(address).await?;
    let _worker = worker(&fabric, true).await?;
    std::future::pending().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let named = std::env::var("FLOWFABRIC_STORE");
    if std::env::args().nth(1).as_deref() == Some("doomed") {
        return Ok(doomed(&named?).await?);
    }
    let folder = tempfile::tempdir()?;
    // Any other store as well that two processes can open, say postgres://user:password@host/database.
    let file = || format!("sqlite:{}", folder.path().join("takeover.db").display());
    let address = named.unwrap_or_else(|_| file());
    let fabric = FlowFabric::open(&address).await?;
    let run = fabric.client().submit(Task::new("work", &())).await?;

    let mut command = Command::new(std::env::current_exe()?);
    command.arg("doomed").env("FLOWFABRIC_STORE", &address).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    println!("{}", lines.next_line().await?.expect("the first worker begins"));
    child.kill().await?;
    println!("the first worker is killed");

    let killed_at = Instant::now();
    let second = worker(&fabric, false).await?;
    let attempt: u32 = run.result().await?;
    let took = killed_at.elapsed();
    println!("taken over and done {} ms later", took.as_millis());
    assert!(attempt == 1 && took < LEASE + PATIENCE);
    second.stop().await;
    fabric.close().await?;
    Ok(())
}
