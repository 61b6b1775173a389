//! Work reaches the one worker that can do it, however many others look for work.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowfabric::{Context, FlowFabric, RunningWorker, Task, TaskResult};
use tokio::sync::{Semaphore, watch};

use crate::support::{PATIENCE, fabric};

const KINDS: usize = 20;
const WORKERS: usize = 50;
const EXECUTIONS: usize = 1_000;

/// Every handler announces itself and waits for permission to end, so that the test decides who is busy.
struct Stage {
    began: watch::Sender<BTreeMap<usize, usize>>,
    gates: Vec<Semaphore>,
}

impl Stage {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            began: watch::Sender::new(BTreeMap::new()),
            gates: (0..KINDS).map(|_| Semaphore::new(0)).collect(),
        })
    }

    /// Waits until the handler of every kind has begun this often. Each waits at its gate then, so every worker that can do
    /// something is busy.
    async fn until_each_began(&self, times: usize) {
        let mut seen = self.began.subscribe();
        let all = |began: &BTreeMap<usize, usize>| (0..KINDS).all(|kind| began.get(&kind).copied() == Some(times));
        let waited = tokio::time::timeout(PATIENCE, seen.wait_for(all)).await.map(|_| ());
        assert!(waited.is_ok(), "some worker is idle although its work waits: {:?}", *self.began.borrow());
    }
}

async fn serve(context: Context, kind: usize) -> TaskResult<usize> {
    let stage = context.state::<Arc<Stage>>()?;
    let worker = *context.state::<usize>()?;
    assert_eq!(worker, kind, "only the worker of a kind can do it");
    stage.began.send_modify(|began| *began.entry(kind).or_default() += 1);
    stage.gates[kind].acquire().await?.forget();
    Ok(kind)
}

/// A worker that handles every kind, one at a time, with one capability of its own.
async fn worker(fabric: &FlowFabric, stage: &Arc<Stage>, number: usize) -> RunningWorker {
    let builder = fabric.worker().name(format!("worker-{number}")).concurrency(1);
    let builder = builder.capability(format!("cap-{number}")).state(Arc::clone(stage)).state(number);
    let builder = (0..KINDS).fold(builder, |builder, kind| builder.on(format!("kind-{kind}"), serve));
    builder.start().await.unwrap()
}

fn task(number: usize) -> Task {
    let kind = number % KINDS;
    Task::new(format!("kind-{kind}"), &kind).requires(format!("cap-{kind}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_execution_waits_while_the_worker_that_can_take_it_is_idle() {
    let fabric = fabric().await;
    let stage = Stage::new();
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        workers.push(worker(&fabric, &stage, number).await);
    }
    let runs = fabric.client().submit_all((0..EXECUTIONS).map(task).collect()).await.unwrap();
    let runs: Vec<_> = runs.into_iter().map(Result::unwrap).collect();
    for round in 1..=EXECUTIONS / KINDS {
        stage.until_each_began(round).await;
        stage.gates.iter().for_each(|gate| gate.add_permits(1));
    }
    for run in runs {
        assert!(run.result_within::<usize>(PATIENCE).await.is_ok());
    }
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_nobody_can_do_says_so_and_starts_when_a_worker_comes() {
    let fabric = fabric().await;
    let stage = Stage::new();
    let other = worker(&fabric, &stage, KINDS + 1).await;
    let run = fabric.client().submit(task(0)).await.unwrap();
    let client = fabric.client();
    let parked = async {
        while run.describe().await.unwrap().blocking_reason.is_none() {
            let again = client.submit(Task::new("kind-1", &1).requires("cap-1")).await.unwrap();
            again.cancel("only wakes the other worker").await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, parked).await.expect("it is parked");
    let reasons = format!("{:?}", run.explain().await.unwrap());
    assert!(reasons.contains("cap-0"), "{reasons}");
    stage.gates[0].add_permits(1);
    let capable = worker(&fabric, &stage, 0).await;
    assert_eq!(run.result_within::<usize>(PATIENCE).await.unwrap(), 0);
    capable.stop().await;
    other.stop().await;
}
