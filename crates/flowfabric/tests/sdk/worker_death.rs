//! A worker that is killed: others take over what it held, and nothing that it says afterwards counts.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowfabric::core::backend::attempts::FailureReason;
use flowfabric::core::backend::streams::{Frame, FrameKind};
use flowfabric::core::backend::subscriptions::LeaseHistoryEvent;
use flowfabric::core::backend::subscriptions::{LeaseChange, ReleaseReason, ScannerFilter, Subscription};
use flowfabric::core::cursor::EventCursor;
use flowfabric::core::handle::Handle;
use flowfabric::core::ids::ExecutionId;
use flowfabric::core::rules::retry::FailureClass;
use flowfabric::{Context, FlowFabric, Run, Task, TaskResult};
use futures_util::StreamExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const LEASES: usize = 50;
const LEASE: Duration = Duration::from_secs(2);

/// How long after the end of a lease its work may wait for the next worker.
const TAKEOVER_MS: u64 = 500;

/// The address of the store, for the process that will be killed.
const DOOMED: &str = "FF_DOOMED_WORKER";

const HELD: &str = "held ";

/// Runs in a process of its own: takes everything and ends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the process that is killed"]
async fn doomed_worker() {
    let address = std::env::var(DOOMED).expect("started by the other test");
    let fabric = FlowFabric::open(&address).await.unwrap();
    let hold = async |context: Context, _input: ()| -> TaskResult {
        println!("{HELD}{}", serde_json::to_string(context.handle())?);
        std::future::pending().await
    };
    let _worker = fabric.worker().concurrency(LEASES).lease_ttl(LEASE).on("work", hold).start().await.unwrap();
    std::future::pending::<()>().await;
}

fn start_doomed(address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "worker_death::doomed_worker", "--nocapture"])
        .env(DOOMED, address)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn held_by(child: &mut Child) -> Vec<Handle> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut held = Vec::new();
    while held.len() < LEASES {
        let line = lines.next_line().await.unwrap().expect("the worker lives");
        if let Some((_, handle)) = line.split_once(HELD) {
            held.push(serde_json::from_str(handle).unwrap());
        }
    }
    held
}

/// When each execution began to run on the second worker, by the store's clock.
type Starts = Arc<Mutex<BTreeMap<ExecutionId, u64>>>;

async fn take_over(context: Context, _input: ()) -> TaskResult<u32> {
    let now = context.client().backend().server_time_ms().await?;
    let starts = context.state::<Starts>()?;
    assert_eq!(starts.lock().unwrap().insert(context.execution_id(), now), None, "nothing is taken over twice");
    Ok(context.attempt())
}

/// Everything that a worker can say about what it holds.
async fn say_everything(fabric: &FlowFabric, handle: &Handle) {
    let backend = fabric.backend();
    assert!(backend.renew(handle).await.is_err());
    assert!(backend.progress(handle, Some(1), None).await.is_err());
    assert!(backend.append_frame(handle, Frame::new(FrameKind::Stdout, "late")).await.is_err());
    assert!(backend.complete(handle, Some("late".into())).await.is_err());
    assert!(backend.fail(handle, FailureReason::new("late"), FailureClass::Transient).await.is_err());
    assert!(backend.cancel(handle, "late").await.is_err());
    assert!(backend.save_step(handle, "late", "late".into()).await.is_err());
}

/// The history of all leases, up to the last completion.
async fn until_all_are_released(mut history: Subscription<LeaseHistoryEvent>) -> Vec<LeaseHistoryEvent> {
    let (mut seen, mut released) = (Vec::new(), 0);
    while released < LEASES {
        let event = history.next().await.expect("goes on").unwrap();
        released += usize::from(matches!(event.change, LeaseChange::Released { reason: ReleaseReason::Completed, .. }));
        seen.push(event);
    }
    seen
}

/// A lease begins only after the one before has ended, and epochs only grow.
fn assert_one_owner_at_a_time(history: &[LeaseHistoryEvent]) {
    let mut live = BTreeMap::new();
    for LeaseHistoryEvent { execution_id, change, .. } in history {
        match change {
            LeaseChange::Acquired { lease_epoch, .. } | LeaseChange::Reclaimed { new_lease_epoch: lease_epoch, .. } => {
                assert_eq!(live.insert(*execution_id, *lease_epoch), None, "{execution_id} has two owners");
            }
            LeaseChange::Expired { lease_epoch, .. } | LeaseChange::Released { lease_epoch, .. } => {
                assert_eq!(live.remove(execution_id), Some(*lease_epoch), "{execution_id}");
            }
            LeaseChange::Renewed { lease_epoch, .. } => assert_eq!(live.get(execution_id), Some(lease_epoch)),
            other => panic!("{execution_id}: unexpected {other:?}"),
        }
    }
    assert!(live.is_empty(), "{live:?}");
    let takeovers = history.iter().filter(|event| matches!(event.change, LeaseChange::Reclaimed { .. })).count();
    assert_eq!(takeovers, LEASES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_worker_held_is_taken_over_in_time_and_by_one() {
    let store = crate::store::shared();
    let fabric = FlowFabric::open(&store.address).await.unwrap();
    let history = fabric.backend().subscribe_lease_history(EventCursor::TAIL, &ScannerFilter::default()).await.unwrap();
    let history = tokio::spawn(until_all_are_released(history));
    let tasks = (0..LEASES).map(|_| Task::new("work", &()));
    let runs = fabric.client().submit_all(tasks.collect()).await.unwrap();
    let runs: Vec<Run> = runs.into_iter().map(Result::unwrap).collect();

    let mut child = start_doomed(&store.address);
    let held = held_by(&mut child).await;
    let starts = Starts::default();
    let builder = fabric.worker().concurrency(LEASES).lease_ttl(LEASE).state(Arc::clone(&starts));
    let second = builder.on("work", take_over).start().await.unwrap();
    child.kill().await.unwrap();
    let killed_at = fabric.backend().server_time_ms().await.unwrap();

    for run in &runs {
        assert_eq!(run.result::<u32>().await.unwrap(), 1, "the second attempt completes it");
    }
    let latest = starts.lock().unwrap().values().max().copied().unwrap();
    let (waited, lease) = (latest - killed_at, u64::try_from(LEASE.as_millis()).unwrap());
    println!("{LEASES} leases taken over, the last one {waited} ms after the kill, lease {lease} ms");
    assert!(waited <= lease + TAKEOVER_MS, "the last one was taken over {waited} ms after the kill");
    for handle in &held {
        say_everything(&fabric, handle).await;
    }
    assert_one_owner_at_a_time(&history.await.unwrap());
    second.stop().await;
    fabric.close().await.unwrap();
}
