//! Workers without work beside an engine's timers: how much they ask of the server, and how fast one begins when work comes. Everything that
//! rests grows cold, the server and a bare transaction, too: so a start is compared with bare transactions with and without such rests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ff_core::backend::EngineBackend;
use ff_sdk::{Client, RunningWorker, Task, Worker};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::worker::{Moment, start};
use crate::latency::{Latencies, Percentiles};
use crate::rounds::{Side, Spread, median_percentiles};
use crate::settings::Options;
use crate::stores::{Busy, Subject};
use crate::work::Measured;

/// Workers that wait for work.
const WORKERS: usize = 5;

/// Submissions to workers that have had nothing to do for a while.
const SUBMISSIONS: usize = 100;

/// For how long they had nothing to do before each.
const REST: Duration = Duration::from_millis(50);

/// Kinds of statements that are told apart.
const BUSIEST: usize = 12;

/// What workers without work cost.
#[derive(Clone, Debug, Serialize)]
pub struct IdleReport {
    /// How many there were, all on one engine, whose timers ran.
    pub workers: usize,
    /// For how many seconds nobody had work.
    pub idle_s: f64,
    /// Statements that the server ran meanwhile.
    pub statements_per_minute: f64,
    /// The most frequent ones.
    pub busiest: Vec<Busy>,
    /// From the call that submits to the handler's start, with pauses in which the workers rest.
    pub submit_to_start: Percentiles,
    /// Transactions of one row in the same run, one after another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<Beside>,
    /// The same with a rest before each, as before each submission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rested_commit: Option<Beside>,
}

/// What a start is compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// The bare side.
    #[serde(flatten)]
    pub bare: Side,
    /// The start against it: the middle.
    pub ratio_p50: f64,
    /// The start against it: the slow end.
    pub ratio_p99: f64,
}

impl Beside {
    /// Round by round; none without a yardstick.
    fn of(starts: &[Percentiles], bare: &[Measured]) -> Option<Self> {
        let ratio = |part: fn(&Percentiles) -> f64| {
            Spread::of(starts.iter().zip(bare).map(|(start, bare)| part(start) / part(&bare.calls))).median
        };
        (!bare.is_empty()).then(|| Self {
            bare: Side::of(bare),
            ratio_p50: ratio(|calls| calls.p50_ms),
            ratio_p99: ratio(|calls| calls.p99_ms),
        })
    }
}

/// Counts statements for a while, then measures bare commits and starts in turn.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<IdleReport> {
    let counter = subject.counter().context("there is no server that counts what is asked of it")?;
    let opened = subject.open().await?;
    let timers = opened.start_timers();
    let mut workers = Workers::start(&opened.backend).await?;
    // Everything has run once.
    workers.submissions(WORKERS).await?;
    let busy = counter.count(options.idle()).await?;
    let calls: i64 = busy.iter().map(|busy| busy.calls).sum();
    let statements_per_minute = calls as f64 * 60.0 / options.idle().as_secs_f64();
    println!("{statements_per_minute:.0} statements per minute");

    let (mut starts, mut commits, mut rested) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        if let Some(yardstick) = subject.yardstick() {
            commits.push(yardstick.commit(options.warm_up(), options.measured().div_f64(2.0)).await?);
            rested.push(yardstick.rested_commits(SUBMISSIONS, REST).await?);
        }
        let start = workers.submissions(SUBMISSIONS).await?.percentiles();
        println!("round {round}: start p50 {:.3} ms, p99 {:.3} ms", start.p50_ms, start.p99_ms);
        starts.push(start);
    }
    workers.stop().await;
    timers.stop().await;

    Ok(IdleReport {
        workers: WORKERS,
        idle_s: options.idle().as_secs_f64(),
        statements_per_minute,
        busiest: busy.into_iter().take(BUSIEST).collect(),
        submit_to_start: median_percentiles(&starts),
        commit: Beside::of(&starts, &commits),
        rested_commit: Beside::of(&starts, &rested),
    })
}

/// Workers with nothing else to do, and what their handlers tell.
struct Workers {
    client: Client,
    running: Vec<RunningWorker>,
    moments: UnboundedReceiver<Moment>,
}

impl Workers {
    async fn start(backend: &Arc<dyn EngineBackend>) -> Result<Self> {
        let (sender, moments) = unbounded_channel::<Moment>();
        let mut running = Vec::with_capacity(WORKERS);
        for _ in 0..WORKERS {
            running.push(worker(backend, sender.clone()).await?);
        }
        Ok(Self { client: Client::new(Arc::clone(backend), "bench")?, running, moments })
    }

    /// One at a time, each to workers that rest.
    async fn submissions(&mut self, count: usize) -> Result<Latencies> {
        let mut noted = Latencies::default();
        for _ in 0..count {
            tokio::time::sleep(REST).await;
            let called = Instant::now();
            let run = self.client.submit(Task::new("start", &())).await?;
            noted.note(self.moments.recv().await.context("the workers are gone")? - called);
            run.result::<()>().await?;
        }
        Ok(noted)
    }

    async fn stop(self) {
        for worker in self.running {
            worker.stop().await;
        }
    }
}

async fn worker(backend: &Arc<dyn EngineBackend>, sender: UnboundedSender<Moment>) -> Result<RunningWorker> {
    let worker = Worker::builder(Arc::clone(backend)).namespace("bench").state(sender).on("start", start);
    Ok(worker.start().await?)
}
