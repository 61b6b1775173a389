//! What a user of workers waits for, at low load: one thing at a time, a worker with nothing else to do.
//!
//! Each latency ends in a handler: it begins to run, hears of its cancellation, or runs again. Beside them stands the bare commit of
//! one row in the same run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ff_core::backend::EngineBackend;
use ff_core::backend::signals::SeedWaitpointHmacSecretArgs;
use ff_sdk::{Client, Context, RunningWorker, Task, TaskResult, Wait, Worker};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::latency::{Latencies, Percentiles};
use crate::rounds::{Side, median_percentiles};
use crate::settings::Options;
use crate::stores::Subject;

/// How long a handler runs before it is cancelled: as long as it takes until its worker watches it.
const SETTLING: Duration = Duration::from_millis(30);

/// What each of the four takes.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerReport {
    /// From the call that submits to the handler's start.
    pub submit_to_start: Percentiles,
    /// From the call that cancels to the handler that hears of it.
    pub cancel_to_handler: Percentiles,
    /// From the call that signals to the handler that runs on.
    pub signal_to_resumed: Percentiles,
    /// From the end of one handler to the start of the one that depends on it.
    pub completion_to_next: Percentiles,
    /// Transactions of one row in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<Side>,
}

/// One round of all four.
struct Round {
    submit: Percentiles,
    cancel: Percentiles,
    signal: Percentiles,
    next: Percentiles,
}

/// Measures bare commits and workers in turn.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<WorkerReport> {
    let (mut rounds, mut commits) = (Vec::new(), Vec::new());
    for number in 1..=options.rounds {
        if let Some(yardstick) = subject.yardstick() {
            commits.push(yardstick.commit(options.warm_up(), options.measured().div_f64(2.0)).await?);
        }
        let opened = subject.open().await?;
        let round = Bench::open(&opened.backend).await?.round(options).await?;
        println!(
            "round {number}: p99 submit {:.2} ms, cancel {:.2} ms, signal {:.2} ms, next step {:.2} ms",
            round.submit.p99_ms, round.cancel.p99_ms, round.signal.p99_ms, round.next.p99_ms
        );
        rounds.push(round);
    }
    let median = |part: fn(&Round) -> Percentiles| median_percentiles(&rounds.iter().map(part).collect::<Vec<_>>());
    Ok(WorkerReport {
        submit_to_start: median(|round| round.submit),
        cancel_to_handler: median(|round| round.cancel),
        signal_to_resumed: median(|round| round.signal),
        completion_to_next: median(|round| round.next),
        commit: (!commits.is_empty()).then(|| Side::of(&commits)),
    })
}

/// A moment in a handler.
pub(super) type Moment = Instant;

pub(super) async fn start(context: Context, _: ()) -> TaskResult {
    context.state::<UnboundedSender<Moment>>()?.send(Instant::now())?;
    Ok(())
}

async fn linger(context: Context, _: ()) -> TaskResult {
    let moments = context.state::<UnboundedSender<Moment>>()?;
    moments.send(Instant::now())?;
    context.cancelled().await;
    moments.send(Instant::now())?;
    Ok(())
}

async fn wait(context: Context, _: ()) -> TaskResult {
    context.wait_for(Wait::signal("go")).await?;
    context.state::<UnboundedSender<Moment>>()?.send(Instant::now())?;
    Ok(())
}

/// A worker with nothing else to do, and what its handlers tell.
struct Bench {
    client: Client,
    worker: RunningWorker,
    moments: UnboundedReceiver<Moment>,
}

impl Bench {
    async fn open(backend: &Arc<dyn EngineBackend>) -> Result<Self> {
        let secret = SeedWaitpointHmacSecretArgs { kid: "bench".into(), secret_hex: "ab".repeat(32).into() };
        backend.seed_waitpoint_hmac_secret(secret).await?;
        let (sender, moments) = unbounded_channel::<Moment>();
        let worker = Worker::builder(Arc::clone(backend)).namespace("bench").state(sender);
        let worker = worker.on("start", start).on("linger", linger).on("wait", wait).start().await?;
        Ok(Self { client: Client::new(Arc::clone(backend), "bench")?, worker, moments })
    }

    async fn round(mut self, options: &Options) -> Result<Round> {
        let (warm_up, time) = (options.warm_up(), options.measured().div_f64(2.0));
        for _ in [self.submits(warm_up).await?, self.signals(warm_up).await?] {}
        let round = Round {
            submit: self.submits(time).await?.percentiles(),
            cancel: self.cancels(time).await?.percentiles(),
            signal: self.signals(time).await?.percentiles(),
            next: self.steps(time).await?.percentiles(),
        };
        self.worker.stop().await;
        Ok(round)
    }

    async fn moment(&mut self) -> Result<Moment> {
        self.moments.recv().await.context("the worker is gone")
    }

    async fn submits(&mut self, time: Duration) -> Result<Latencies> {
        let (mut noted, begin) = (Latencies::default(), Instant::now());
        while begin.elapsed() < time {
            let called = Instant::now();
            let run = self.client.submit(Task::new("start", &())).await?;
            noted.note(self.moment().await? - called);
            run.result::<()>().await?;
        }
        Ok(noted)
    }

    async fn cancels(&mut self, time: Duration) -> Result<Latencies> {
        let (mut noted, begin) = (Latencies::default(), Instant::now());
        while begin.elapsed() < time {
            let run = self.client.submit(Task::new("linger", &())).await?;
            self.moment().await?;
            tokio::time::sleep(SETTLING).await;
            let called = Instant::now();
            run.cancel("measured").await?;
            noted.note(self.moment().await? - called);
        }
        Ok(noted)
    }

    async fn signals(&mut self, time: Duration) -> Result<Latencies> {
        let (mut noted, begin) = (Latencies::default(), Instant::now());
        while begin.elapsed() < time {
            let run = self.client.submit(Task::new("wait", &())).await?;
            run.until_waiting("go").await?;
            let called = Instant::now();
            run.signal("go", "go", &()).await?;
            noted.note(self.moment().await? - called);
            run.result::<()>().await?;
        }
        Ok(noted)
    }

    async fn steps(&mut self, time: Duration) -> Result<Latencies> {
        let (mut noted, begin) = (Latencies::default(), Instant::now());
        while begin.elapsed() < time {
            let task = || Task::new("start", &());
            let flow = self.client.flow("two").node("first", task()).node("second", task()).edge("first", "second");
            let flow = flow.submit().await?;
            let first = self.moment().await?;
            noted.note(self.moment().await? - first);
            flow.run("second").context("a member")?.result::<()>().await?;
        }
        Ok(noted)
    }
}
