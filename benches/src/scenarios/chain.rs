//! A flow of steps, each waiting for the one before, at low load: one chain at a time, two workers that wait for work.
//!
//! A hand-off lasts from the call that completes a step to the answer that gives the next step to a worker, which is
//! waiting already: two commits, one after the other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ff_core::backend::dependencies::DependencyKind;
use ff_core::backend::flows::{FlowEdge, FlowNode, SubmitFlowArgs, SubmitFlowResult};
use serde::Serialize;
use tokio::sync::Notify;

use crate::latency::Latencies;
use crate::rounds::{Side, Spread};
use crate::settings::{CHAIN_STEPS, Options};
use crate::stores::Subject;
use crate::work::{Caller, Measured, Stopwatch, payload, together};

const LANE: &str = "chain";

/// One completes a step while the other waits for the next.
const WORKERS: usize = 2;

/// A worker looks at least this often whether the measurement is over.
const WAIT: Duration = Duration::from_millis(100);

/// Steps per second, and how long the hand-off between two of them takes.
#[derive(Clone, Debug, Serialize)]
pub struct ChainReport {
    /// Steps per second; the latencies are those of the hand-off.
    #[serde(flatten)]
    pub side: Side,
    /// Transactions of one row in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<Side>,
    /// Hand-off against that transaction: the middle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_p50: Option<f64>,
    /// Hand-off against that transaction: the slow end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_p99: Option<f64>,
}

/// Measures bare commits and chains in turn.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<ChainReport> {
    let (mut chains, mut commits) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        if let Some(yardstick) = subject.yardstick() {
            commits.push(yardstick.commit(options.warm_up(), options.measured().div_f64(2.0)).await?);
        }
        let opened = subject.open().await?;
        let worker = Caller::new(&opened.backend, LANE, 0)?;
        measure(&worker, options.warm_up()).await?;
        let chain = measure(&worker, options.measured()).await?;
        println!("round {round}: {:.0} steps/s, hand-off p50 {:.3} ms", chain.per_s, chain.calls.p50_ms);
        chains.push(chain);
    }
    let ratio = |part: fn(&Measured) -> f64| {
        let rounds = chains.iter().zip(&commits).map(|(chain, commit)| part(chain) / part(commit));
        (!commits.is_empty()).then(|| Spread::of(rounds).median)
    };
    Ok(ChainReport {
        side: Side::of(&chains),
        ratio_p50: ratio(|side| side.calls.p50_ms),
        ratio_p99: ratio(|side| side.calls.p99_ms),
        commit: (!commits.is_empty()).then(|| Side::of(&commits)),
    })
}

async fn measure(caller: &Caller, time: Duration) -> Result<Measured> {
    let chain = Arc::new(Chain::default());
    let workers = (0..WORKERS).map(|_| serve(caller.clone(), Arc::clone(&chain)));
    let mut workers = tokio::spawn(together(workers.collect::<Vec<_>>()));
    let watch = Stopwatch::start();
    while watch.elapsed() < time {
        submit(caller).await?;
        tokio::select! {
            () = chain.ended.notified() => {}
            stopped = &mut workers => bail!("the workers stopped in the middle of a chain: {:?}", stopped?),
        }
    }
    let progress = std::mem::replace(&mut *chain.lock(), Progress { over: true, ..Progress::default() });
    let measured = watch.measured(progress.completed as f64, progress.hand_offs);
    workers.await??;
    Ok(measured)
}

async fn submit(caller: &Caller) -> Result<()> {
    let node = |step: usize| FlowNode {
        name: format!("step-{step}"),
        lane_id: caller.lane(),
        execution_kind: "bench".into(),
        input_payload: payload(),
        payload_encoding: None,
        priority: 0,
        tags: [].into(),
        policy: None,
        delay_until: None,
        execution_deadline_at: None,
        join: None,
        trace_context: None,
    };
    let edge = |step: usize| FlowEdge {
        from: format!("step-{}", step - 1),
        to: format!("step-{step}"),
        kind: DependencyKind::default(),
        data_passing_ref: None,
    };
    let flow = SubmitFlowArgs {
        flow_id: None,
        flow_kind: "chain".into(),
        namespace: caller.namespace(),
        idempotency_key: None,
        tags: [].into(),
        nodes: (0..CHAIN_STEPS).map(node).collect(),
        edges: (1..CHAIN_STEPS).map(edge).collect(),
    };
    match caller.backend().submit_flow(flow).await? {
        SubmitFlowResult::Submitted { .. } => Ok(()),
        SubmitFlowResult::Duplicate { flow_id } => bail!("{flow_id} was there already"),
    }
}

/// Only one step is claimable at a time, so both workers share one place in the chain.
#[derive(Default)]
struct Chain {
    progress: Mutex<Progress>,
    ended: Notify,
}

#[derive(Default)]
struct Progress {
    claimed: usize,
    completed: usize,
    /// When the completion was called that makes the next step claimable.
    handed_off_at: Option<Instant>,
    hand_offs: Latencies,
    over: bool,
}

impl Chain {
    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the hand-off that ends with this claim and begins the next one; says whether this is the last step.
    fn take_step(&self) -> bool {
        let now = Instant::now();
        let mut progress = self.lock();
        if let Some(at) = progress.handed_off_at.take() {
            progress.hand_offs.note(now - at);
        }
        progress.claimed += 1;
        let last = progress.claimed.is_multiple_of(CHAIN_STEPS);
        progress.handed_off_at = (!last).then(Instant::now);
        last
    }
}

async fn serve(caller: Caller, chain: Arc<Chain>) -> Result<()> {
    while !chain.lock().over {
        let Some(handle) = caller.wait(WAIT).await? else { continue };
        let last = chain.take_step();
        caller.complete(&handle).await?;
        chain.lock().completed += 1;
        if last {
            chain.ended.notify_one();
        }
    }
    Ok(())
}
