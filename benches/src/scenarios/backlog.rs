//! The lifecycle on a lane where others wait: few of them in one store, very many in another, measured in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use ff_core::backend::EngineBackend;
use ff_core::backend::ingress::CreateExecutionOutcome;
use serde::Serialize;

use super::lifecycle::{self, LANE};
use crate::process;
use crate::rounds::{Side, Spread, rate_ratios};
use crate::settings::{CALLERS, Options, WAITING_FEW};
use crate::stores::Subject;
use crate::work::{Caller, Measured, together};

/// Callers that fill a backlog.
const FILLERS: usize = 256;

/// Submissions per call while filling.
const BATCH: u64 = 50;

/// How often filling says how far it is.
const PROGRESS: u64 = 100_000;

/// Lifecycles beside a few and beside very many waiting executions.
#[derive(Clone, Debug, Serialize)]
pub struct BacklogReport {
    /// With the long queue.
    #[serde(flatten)]
    pub many: Side,
    /// How long it is.
    pub waiting: u64,
    /// With the short queue.
    pub few: Side,
    /// Rate with the long queue against the short one, per round.
    pub ratio_spread: Spread,
    /// Its median.
    pub ratio: f64,
    /// Submissions per second while the long queue was filled.
    pub fill_per_s: f64,
    /// Most memory of the process during this scenario; none where the kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_mb: Option<f64>,
}

/// Fills two stores and measures them in turn.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<BacklogReport> {
    if !process::reset_peak() {
        println!("the peak of memory includes what ran before");
    }
    let few = subject.open().await?;
    fill(&few.backend, WAITING_FEW).await?;
    let many = subject.open().await?;
    let begin = Instant::now();
    fill(&many.backend, options.waiting).await?;
    let fill_per_s = options.waiting as f64 / begin.elapsed().as_secs_f64();
    println!("filled at {fill_per_s:.0}/s");
    subject.settle().await?;

    let (mut short, mut long) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        short.push(measure(&few.backend, options).await?);
        long.push(measure(&many.backend, options).await?);
        let (short, long) = (short[short.len() - 1].per_s, long[long.len() - 1].per_s);
        let waiting = options.waiting;
        println!("round {round}: {WAITING_FEW} waiting {short:.0}/s, {waiting} waiting {long:.0}/s");
    }
    let ratio = rate_ratios(&long, &short);
    Ok(BacklogReport {
        many: Side::of(&long),
        waiting: options.waiting,
        few: Side::of(&short),
        ratio_spread: ratio,
        ratio: ratio.median,
        fill_per_s,
        peak_rss_mb: process::peak_mb(),
    })
}

/// Everything has one priority, so each claim takes the oldest of the queue and each submission goes to its end.
async fn measure(backend: &Arc<dyn EngineBackend>, options: &Options) -> Result<Measured> {
    let same = |_| 0;
    lifecycle::measure(backend, CALLERS[0], same, options.warm_up()).await?;
    Ok(lifecycle::measure(backend, CALLERS[0], same, options.measured()).await?.measured)
}

async fn fill(backend: &Arc<dyn EngineBackend>, waiting: u64) -> Result<()> {
    let left = Arc::new(AtomicU64::new(waiting));
    let mut fillers = Vec::with_capacity(FILLERS);
    for number in 0..FILLERS {
        fillers.push(submit_all(Caller::new(backend, LANE, number)?, Arc::clone(&left)));
    }
    together(fillers).await?;
    Ok(())
}

async fn submit_all(caller: Caller, left: Arc<AtomicU64>) -> Result<()> {
    loop {
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(BATCH)));
        let (Ok(before) | Err(before)) = before;
        let batch: Vec<_> = (0..before.min(BATCH)).map(|_| caller.submission(0)).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let outcomes = caller.backend().create_executions(batch).await?;
        let created = |outcome: &CreateExecutionOutcome| matches!(outcome, CreateExecutionOutcome::Created { .. });
        ensure!(outcomes.iter().all(created), "a submission was refused: {outcomes:?}");
        if before % PROGRESS == 0 {
            println!("{before} left to submit");
        }
    }
}
