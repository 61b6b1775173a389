//! A deployment waits for two different people. While it waits no worker is held; what was done before is not done again.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowfabric::{Context, FlowFabric, Task, TaskError, TaskResult, Wait};

/// How often the build really ran.
struct Builds(AtomicU32);

async fn deploy(context: Context, version: String) -> TaskResult<String> {
    let builds = context.state::<Builds>()?;
    let build = async || -> TaskResult<String> {
        builds.0.fetch_add(1, Ordering::Relaxed);
        Ok(format!("image-{version}"))
    };
    let image: String = context.step("build", build).await?;

    let wait = Wait::approval("go-live").from_sources(2).timeout(Duration::from_secs(3600));
    let answer = context.wait_for(wait).await?;
    if !answer.is_approved() {
        return Err(TaskError::permanent("somebody said no"));
    }
    let people: Vec<&str> = answer.signals().iter().map(|signal| signal.source_identity.as_str()).collect();
    Ok(format!("{image} is live, thanks to {}", people.join(" and ")))
}

#[tokio::main]
async fn main() -> flowfabric::Result<()> {
    // Any other store as well, say postgres://user:password@host/database.
    let address = std::env::var("FLOWFABRIC_STORE").unwrap_or_else(|_| "sqlite::memory:".to_owned());
    let fabric = FlowFabric::open(&address).await?;
    let worker = fabric.worker().state(Builds(AtomicU32::new(0))).on("deploy", deploy).start().await?;

    let run = fabric.client().submit(Task::new("deploy", "v7")).await?;
    run.until_waiting("go-live").await?;
    println!("waiting for: {:?}", run.waiting_for().await?.iter().map(|open| &open.waitpoint_key).collect::<Vec<_>>());

    run.approve("go-live", "ada").await?;
    run.approve("go-live", "ada").await?;
    assert_eq!(run.waiting_for().await?.len(), 1, "one person counts once");
    run.approve("go-live", "grace").await?;

    let report: String = run.result().await?;
    println!("{report}");
    assert_eq!(report, "image-v7 is live, thanks to ada and grace");
    worker.stop().await;
    fabric.close().await
}
