//! The yardsticks alone: what there is to be compared with, before anything is.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::process;
use crate::rounds::{Side, Spread};
use crate::settings::Options;
use crate::stores::Subject;
use crate::work::Measured;

/// All yardsticks of a store.
#[derive(Clone, Debug, Serialize)]
pub struct BareReport {
    /// The bare queue, as the lifecycle is compared with it.
    #[serde(flatten)]
    pub queues: BTreeMap<&'static str, Bare>,
    /// Transactions of one row.
    pub commit: Bare,
}

/// One yardstick.
#[derive(Clone, Debug, Serialize)]
pub struct Bare {
    /// What the table calls it.
    #[serde(skip)]
    pub name: &'static str,
    /// Rate and latency.
    #[serde(flatten)]
    pub side: Side,
    /// How many wanted a processor after each round, on average over its last minute.
    pub load: Spread,
}

#[derive(Default)]
struct Rounds {
    measured: Vec<Measured>,
    load: Vec<f64>,
}

impl Rounds {
    fn note(&mut self, round: u32, name: &str, measured: Measured) {
        let load = process::load().unwrap_or(f64::NAN);
        let (p50, p99) = (measured.calls.p50_ms, measured.calls.p99_ms);
        println!("round {round}: {name}: {:.0}/s, p50 {p50:.3} ms, p99 {p99:.3} ms, load {load}", measured.per_s);
        self.measured.push(measured);
        self.load.push(load);
    }

    fn bare(self, name: &'static str) -> Bare {
        Bare { name, side: Side::of(&self.measured), load: Spread::of(self.load) }
    }
}

/// Measures them in turn.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<BareReport> {
    let yardstick = subject.yardstick().context("this store has no yardstick")?;
    let (warm_up, time) = (options.warm_up(), options.measured());
    let commit_name = "bare commit of one row";
    let mut queues = yardstick.comparisons().map(|comparison| (comparison, Rounds::default()));
    let mut commits = Rounds::default();
    for round in 1..=options.rounds {
        for (comparison, rounds) in &mut queues {
            rounds.note(round, comparison.name, yardstick.queue(comparison.in_flight, warm_up, time).await?);
        }
        commits.note(round, commit_name, yardstick.commit(warm_up, time).await?);
    }
    let queues = queues.into_iter().map(|(comparison, rounds)| (comparison.key, rounds.bare(comparison.name)));
    Ok(BareReport { queues: queues.collect(), commit: commits.bare(commit_name) })
}
