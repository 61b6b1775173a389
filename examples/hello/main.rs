//! Submits one task, lets a worker do it, and waits for its result.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use flowfabric::{Context, FlowFabric, Task, TaskResult};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Guest {
    name: String,
}

async fn greet(context: Context, guest: Guest) -> TaskResult<String> {
    context.progress(50, "thinking of something kind").await?;
    Ok(format!("Hello, {}!", guest.name))
}

#[tokio::main]
async fn main() -> flowfabric::Result<()> {
    // Any other store as well, say postgres://user:password@host/database.
    let address = std::env::var("FLOWFABRIC_STORE").unwrap_or_else(|_| "sqlite::memory:".to_owned());
    let fabric = FlowFabric::open(&address).await?;
    let worker = fabric.worker().on("greet", greet).start().await?;

    let guest = Guest { name: "world".to_owned() };
    let run = fabric.client().submit(Task::new("greet", &guest)).await?;
    let greeting: String = run.result().await?;

    println!("{greeting}");
    assert_eq!(greeting, "Hello, world!");
    worker.stop().await;
    fabric.close().await
}
