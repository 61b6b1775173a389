//! A process that is asked to end finishes the work that it has begun.

use std::process::Stdio;

use crate::support::{PATIENCE, in_time};
use flowfabric::core::backend::workers::ListWorkersArgs;
use flowfabric::{Context, FlowFabric, Task, TaskResult};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// The address of the store, for the process that is asked to end.
const DRAINED: &str = "FF_DRAINED_WORKER";

/// Runs in a process of its own until it is asked to end. Its handler ends when the other process says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the process that is asked to end"]
async fn drained_worker() {
    let address = std::env::var(DRAINED).expect("started by the other test");
    let fabric = FlowFabric::open(&address).await.unwrap();
    let work = async |_: Context, _: ()| -> TaskResult<String> {
        println!("\nbegun");
        let mut line = String::new();
        BufReader::new(tokio::io::stdin()).read_line(&mut line).await?;
        Ok(line.trim().to_owned())
    };
    fabric.worker().concurrency(1).on("work", work).run().await.unwrap();
    println!("\nended");
    fabric.close().await.unwrap();
}

fn start(address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "drain::drained_worker", "--nocapture"])
        .env(DRAINED, address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_asked_to_end_finishes_what_it_began() {
    let store = crate::store::shared();
    let fabric = FlowFabric::open(&store.address).await.unwrap();
    let first = fabric.client().submit(Task::new("work", &())).await.unwrap();
    let mut child = start(&store.address);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    in_time("the handler", async { while lines.next_line().await.unwrap().expect("lives") != "begun" {} }).await;

    let pid = child.id().expect("lives");
    let asked = Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status().await.unwrap();
    assert!(asked.success());
    child.stdin.as_mut().unwrap().write_all(b"done\n").await.unwrap();

    assert_eq!(first.result_within::<String>(PATIENCE).await.unwrap(), "done");
    in_time("the end", async { while lines.next_line().await.unwrap().expect("lives") != "ended" {} }).await;
    assert!(in_time("the process", child.wait()).await.unwrap().success());
    let workers = fabric.backend().list_workers(ListWorkersArgs::default()).await.unwrap();
    assert_eq!(workers.entries, [], "it has left the registry");
    fabric.close().await.unwrap();
}
