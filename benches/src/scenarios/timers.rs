//! How late timers are: delays that end at random times, and delays that all end at the same moment.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use ff_core::TimestampMs;
use ff_core::backend::EngineBackend;
use ff_core::ids::ExecutionId;
use ff_core::state::PublicState;
use serde::Serialize;

use crate::latency::{Latencies, Percentiles};
use crate::settings::{CALLERS, Options, TIMERS};
use crate::stores::{Opened, Subject};
use crate::work::{Caller, together};

const LANE: &str = "timers";

/// Before the first one ends all are armed.
const ARMING: Duration = Duration::from_secs(1);

/// For how long the others follow.
const SPAN: Duration = Duration::from_secs(3);

/// After so long something must be wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lateness, from the time a delay was to end to that of the transaction that ended it.
#[derive(Clone, Debug, Serialize)]
pub struct TimersReport {
    /// How many delays there were.
    pub timers: usize,
    /// Of delays that end at random times; the worst round.
    pub spread: Lateness,
    /// Of delays that end at the same moment; the worst round.
    pub burst: Lateness,
}

/// Half of the timers were less late than the first, one in a hundred was later than the second, none was later than the third.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lateness {
    /// The middle and the slow end.
    #[serde(flatten)]
    pub percentiles: Percentiles,
    /// Milliseconds.
    pub max_ms: f64,
}

impl Lateness {
    fn of(late: &[Duration]) -> Self {
        let mut noted = Latencies::default();
        late.iter().for_each(|late| noted.note(*late));
        let max_ms = late.iter().max().map_or(0.0, |late| late.as_secs_f64() * 1e3);
        Self { percentiles: noted.percentiles(), max_ms }
    }

    fn or_worse(self, other: Self) -> Self {
        if other.max_ms > self.max_ms { other } else { self }
    }
}

/// Measures lateness.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<TimersReport> {
    let mut report = TimersReport { timers: TIMERS, spread: Lateness::default(), burst: Lateness::default() };
    for round in 1..=options.rounds {
        let spread = measure(&subject.open().await?, SPAN).await?;
        let burst = measure(&subject.open().await?, Duration::ZERO).await?;
        println!("round {round}: {} ms late at most, {} ms when all are due at once", spread.max_ms, burst.max_ms);
        report.spread = report.spread.or_worse(spread);
        report.burst = report.burst.or_worse(burst);
    }
    Ok(report)
}

async fn measure(opened: &Opened, span: Duration) -> Result<Lateness> {
    let timers = opened.start_timers();
    let armed = arm(&opened.backend, span).await?;
    let last = armed.iter().map(|(_, at)| *at).max().unwrap_or_default();
    let now = opened.backend.server_time_ms().await?;
    let wait = u64::try_from(last.0).unwrap_or(0).saturating_sub(now);
    tokio::time::sleep(Duration::from_millis(wait)).await;
    let late = tokio::time::timeout(PATIENCE, lateness(&opened.backend, &armed)).await??;
    timers.stop().await;
    Ok(Lateness::of(&late))
}

/// Arms all of them.
async fn arm(backend: &Arc<dyn EngineBackend>, span: Duration) -> Result<Vec<(ExecutionId, TimestampMs)>> {
    let now = TimestampMs(i64::try_from(backend.server_time_ms().await?)?);
    let (first, span) = (now.plus(millis(ARMING)), millis(span));
    let tasks = (0..CALLERS[1]).map(|number| {
        let caller = Caller::new(backend, LANE, number);
        async move {
            let caller = caller?;
            let mut armed = Vec::new();
            for nth in (number..TIMERS).step_by(CALLERS[1]) {
                let at = first.plus(spread(nth, span));
                armed.push((caller.create_delayed(at).await?, at));
            }
            Ok(armed)
        }
    });
    let armed: Vec<_> = together(tasks).await?.into_iter().flatten().collect();
    if backend.server_time_ms().await? > u64::try_from(first.0)? {
        bail!("arming took longer than {ARMING:?}: the numbers would mean nothing");
    }
    Ok(armed)
}

/// Times all over the span, in no order: multiples of the golden ratio.
fn spread(nth: usize, span: u64) -> u64 {
    (nth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % span.max(1)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// How late each of them was, when all are over.
async fn lateness(backend: &Arc<dyn EngineBackend>, armed: &[(ExecutionId, TimestampMs)]) -> Result<Vec<Duration>> {
    let mut late = Vec::with_capacity(armed.len());
    for (id, at) in armed {
        loop {
            let Some(found) = backend.describe_execution(*id).await? else { bail!("{id} is gone") };
            if found.public_state != PublicState::Delayed {
                late.push(Duration::from_millis(found.last_mutation_at.since(*at)));
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(late)
}
