//! A task that fails twice is tried again until it succeeds; one that would run for ever is cancelled and hears of it.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use flowfabric::{Context, Ending, Error, FlowFabric, Interruption, Task, TaskError, TaskResult};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Succeeds at the third attempt.
async fn flaky(context: Context, _input: ()) -> TaskResult<u32> {
    match context.attempt() {
        attempt @ 0..2 => Err(TaskError::transient(format!("attempt {attempt} does not work"))),
        attempt => Ok(attempt),
    }
}

/// Runs until it is told to stop.
async fn endless(context: Context, _input: ()) -> TaskResult {
    let heard = context.state::<UnboundedSender<Interruption>>()?;
    context.stream().text("still here").await?;
    let why = context.cancelled().await;
    heard.send(why)?;
    // The execution is over by now: nothing more is accepted.
    assert!(context.progress(99, "almost").await.is_err_and(|error| error.is_lost()));
    Ok(())
}

#[tokio::main]
async fn main() -> flowfabric::Result<()> {
    // Any other store as well, say postgres://user:password@host/database.
    let address = std::env::var("FLOWFABRIC_STORE").unwrap_or_else(|_| "sqlite::memory:".to_owned());
    let fabric = FlowFabric::open(&address).await?;
    let (heard, mut hearing) = unbounded_channel::<Interruption>();
    let worker = fabric.worker().state(heard).on("flaky", flaky).on("endless", endless).start().await?;
    let client = fabric.client();

    let task = Task::new("flaky", &()).retries(5).backoff(Duration::from_millis(20), Duration::from_secs(1));
    let attempt: u32 = client.submit(task).await?.result().await?;
    println!("flaky succeeded at attempt {attempt}");
    assert_eq!(attempt, 2);

    let run = client.submit(Task::new("endless", &())).await?;
    let frame = run.frames().next().await.expect("a frame")?;
    println!("endless says: {}", String::from_utf8_lossy(&frame.payload));
    run.cancel("nobody needs it").await?;
    let why = hearing.recv().await.expect("the handler hears of it");
    println!("endless heard: {why}");
    assert_eq!(why, Interruption::Cancelled { reason: "nobody needs it".to_owned() });
    let ended = run.result::<()>().await;
    assert!(matches!(ended, Err(Error::Ended { ending: Ending::Cancelled { .. }, .. })));

    worker.stop().await;
    fabric.close().await
}
