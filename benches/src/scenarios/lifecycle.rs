//! Submit, claim, complete, by many callers in a closed loop on one lane.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ff_core::backend::EngineBackend;
use serde::Serialize;

use crate::latency::{Latencies, Percentiles};
use crate::rounds::{Side, Spread, median_percentiles, rate_ratios};
use crate::settings::{CALLERS, Options};
use crate::stores::Subject;
use crate::work::{Caller, Measured, Stopwatch, priority, timed, together};
use crate::yardsticks::Comparison;

/// The lane of this scenario and of the backlog.
pub const LANE: &str = "lifecycle";

/// Lifecycles with few and with many callers. What has no number of callers in its name is of the few.
#[derive(Clone, Debug, Serialize)]
pub struct LifecycleReport {
    /// Lifecycles per second, and the latency of one call.
    #[serde(flatten)]
    pub side: Side,
    /// Lifecycles per second of the yardstick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yardstick_per_s: Option<f64>,
    /// `ratio_…`, once per number of callers: rate against what the yardstick compares them with.
    #[serde(flatten)]
    pub ratios: BTreeMap<String, f64>,
    /// `callers_16` and `callers_256`: everything about one number of callers.
    #[serde(flatten)]
    pub by_callers: BTreeMap<String, ByCallers>,
}

/// Lifecycles with one number of callers.
#[derive(Clone, Debug, Serialize)]
pub struct ByCallers {
    /// How many callers.
    #[serde(skip)]
    pub callers: usize,
    /// Lifecycles per second, and the latency of one call of any kind.
    #[serde(flatten)]
    pub side: Side,
    /// A whole lifecycle.
    pub lifecycle: Percentiles,
    /// The submission.
    pub create: Percentiles,
    /// The claim.
    pub claim: Percentiles,
    /// The completion.
    pub complete: Percentiles,
    /// What it is compared with.
    #[serde(skip)]
    pub comparison: Option<Comparison>,
    /// The bare queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yardstick: Option<Side>,
    /// Rate against the yardstick, per round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Spread>,
}

/// One measurement of the lifecycle.
#[derive(Clone, Copy, Debug)]
pub struct Lifecycles {
    /// Rate of lifecycles, latency of calls.
    pub measured: Measured,
    /// How many lifecycles.
    pub count: usize,
    whole: Percentiles,
    create: Percentiles,
    claim: Percentiles,
    complete: Percentiles,
}

#[derive(Default)]
struct Rounds {
    comparison: Option<Comparison>,
    ours: Vec<Lifecycles>,
    bare: Vec<Measured>,
}

/// Measures both numbers of callers, each beside the yardstick, in turn.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<LifecycleReport> {
    let mut rounds: [Rounds; CALLERS.len()] = Default::default();
    for round in 1..=options.rounds {
        for (nth, (callers, rounds)) in CALLERS.into_iter().zip(&mut rounds).enumerate() {
            let bare = match subject.yardstick() {
                Some(yardstick) => {
                    let comparison = yardstick.comparisons()[nth];
                    rounds.comparison = Some(comparison);
                    Some(yardstick.queue(comparison.in_flight, options.warm_up(), options.measured()).await?)
                }
                None => None,
            };
            let ours = fresh(subject, callers, options).await?;
            let beside = bare.map_or(String::new(), |bare| {
                format!(", bare {:.0}/s, ratio {:.3}", bare.per_s, ours.measured.per_s / bare.per_s)
            });
            println!("round {round}: {callers} callers {:.0}/s{beside}", ours.measured.per_s);
            rounds.ours.push(ours);
            rounds.bare.extend(bare);
        }
    }
    let summaries = CALLERS.into_iter().zip(&rounds).map(|(callers, rounds)| summarize(callers, rounds));
    Ok(report(summaries.collect()))
}

/// On a backend of its own, so that every round begins alike.
async fn fresh(subject: &dyn Subject, callers: usize, options: &Options) -> Result<Lifecycles> {
    let opened = subject.open().await?;
    measure(&opened.backend, callers, priority, options.warm_up()).await?;
    measure(&opened.backend, callers, priority, options.measured()).await
}

/// Lets callers go round until the time is over, then lets each end the lifecycle it is in.
pub async fn measure(
    backend: &Arc<dyn EngineBackend>,
    callers: usize,
    priority: fn(usize) -> i32,
    time: Duration,
) -> Result<Lifecycles> {
    let watch = Stopwatch::start();
    let mut tasks = Vec::with_capacity(callers);
    for number in 0..callers {
        tasks.push(go_round(Caller::new(backend, LANE, number)?, priority, watch.after(time)));
    }
    let mut all = Noted::default();
    for noted in together(tasks).await? {
        all.merge(noted);
    }
    Ok(all.measured(&watch))
}

async fn go_round(caller: Caller, priority: fn(usize) -> i32, until: Instant) -> Result<Noted> {
    let mut noted = Noted::default();
    let mut nth = 0;
    while Instant::now() < until {
        nth += 1;
        let begin = Instant::now();
        timed(&mut noted.create, caller.create(priority(nth))).await?;
        let handle = timed(&mut noted.claim, caller.claim()).await?;
        timed(&mut noted.complete, caller.complete(&handle)).await?;
        noted.whole.note(begin.elapsed());
    }
    Ok(noted)
}

#[derive(Default)]
struct Noted {
    whole: Latencies,
    create: Latencies,
    claim: Latencies,
    complete: Latencies,
}

impl Noted {
    fn merge(&mut self, other: Self) {
        self.whole.merge(other.whole);
        self.create.merge(other.create);
        self.claim.merge(other.claim);
        self.complete.merge(other.complete);
    }

    fn measured(self, watch: &Stopwatch) -> Lifecycles {
        let mut calls = self.create.clone();
        calls.merge(self.claim.clone());
        calls.merge(self.complete.clone());
        Lifecycles {
            count: self.whole.count(),
            measured: watch.measured(self.whole.count() as f64, calls),
            whole: self.whole.percentiles(),
            create: self.create.percentiles(),
            claim: self.claim.percentiles(),
            complete: self.complete.percentiles(),
        }
    }
}

fn summarize(callers: usize, rounds: &Rounds) -> ByCallers {
    let measured: Vec<Measured> = rounds.ours.iter().map(|ours| ours.measured).collect();
    let median =
        |part: fn(&Lifecycles) -> Percentiles| median_percentiles(&rounds.ours.iter().map(part).collect::<Vec<_>>());
    let compared = !rounds.bare.is_empty();
    ByCallers {
        callers,
        side: Side::of(&measured),
        lifecycle: median(|ours| ours.whole),
        create: median(|ours| ours.create),
        claim: median(|ours| ours.claim),
        complete: median(|ours| ours.complete),
        comparison: rounds.comparison,
        yardstick: compared.then(|| Side::of(&rounds.bare)),
        ratio: compared.then(|| rate_ratios(&measured, &rounds.bare)),
    }
}

fn report(summaries: Vec<ByCallers>) -> LifecycleReport {
    let few = &summaries[0];
    let ratio = |by: &ByCallers| Some((format!("ratio_{}", by.comparison?.key), by.ratio?.median));
    LifecycleReport {
        side: few.side,
        yardstick_per_s: few.yardstick.map(|bare| bare.per_s),
        ratios: summaries.iter().filter_map(ratio).collect(),
        by_callers: summaries.into_iter().map(|by| (format!("callers_{}", by.callers), by)).collect(),
    }
}
