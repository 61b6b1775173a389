//! What the processes of the test tell, and what that amounts to.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use ff_core::ids::ExecutionId;
use serde::{Deserialize, Serialize};

use crate::feed::Glimpse;

/// One thing that a process tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Line {
    /// It owns an execution.
    Claimed { execution: ExecutionId, epoch: u64, worker: String },
    /// How long news of the other process took: work, or a frame.
    News { of: String, micros: u64 },
    /// How often a call ended in which way.
    Counted { op: String, outcome: String, times: u64 },
    /// The longest that a call took.
    Slowest { op: String, micros: u64 },
    /// What its reader of the event log saw next.
    Saw(Vec<Glimpse>),
    /// It changes nothing any more.
    Finished,
    /// Something that must not happen did.
    Trouble { op: String, error: String },
}

impl Line {
    /// Writes the line in one go.
    ///
    /// # Panics
    /// When nobody listens.
    pub fn tell(&self) {
        let mut text = serde_json::to_string(self).expect("lines have a text");
        text.push('\n');
        std::io::stdout().lock().write_all(text.as_bytes()).expect("somebody listens");
    }
}

/// Everything that a process told.
#[derive(Debug, Default)]
pub struct Report {
    /// What it claimed: executions, with the epoch and who owns them.
    pub claims: Vec<(ExecutionId, u64, String)>,
    /// What its reader of the event log saw.
    pub seen: Vec<Glimpse>,
    news: BTreeMap<String, Vec<u64>>,
    counted: BTreeMap<(String, String), u64>,
    slowest: BTreeMap<String, u64>,
    troubles: Vec<String>,
}

impl Report {
    /// What lines amount to.
    ///
    /// # Errors
    /// A line that cannot be read.
    pub fn read(lines: &[String]) -> Result<Self, String> {
        let mut report = Self::default();
        for line in lines {
            match serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))? {
                Line::Claimed { execution, epoch, worker } => report.claims.push((execution, epoch, worker)),
                Line::News { of, micros } => report.news.entry(of).or_default().push(micros),
                Line::Counted { op, outcome, times } => drop(report.counted.insert((op, outcome), times)),
                Line::Slowest { op, micros } => drop(report.slowest.insert(op, micros)),
                Line::Saw(glimpses) => report.seen.extend(glimpses),
                Line::Finished => {}
                Line::Trouble { op, error } => report.troubles.push(format!("{op}: {error}")),
            }
        }
        report.news.values_mut().for_each(|times| times.sort_unstable());
        Ok(report)
    }

    /// Prints its figures.
    #[allow(clippy::print_stdout, reason = "the figures are for people")]
    pub fn show(&self, process: usize) {
        let calls: u64 = self.counted.values().sum();
        println!("process {process}: {calls} calls, {} claims", self.claims.len());
        for ((op, outcome), times) in self.counted.iter().filter(|((_, outcome), _)| outcome != "ok") {
            println!("  {op} was refused with {outcome}: {times}");
        }
        let slowest = self.slowest.iter().max_by_key(|(_, micros)| **micros);
        if let Some((op, micros)) = slowest {
            println!("  the longest call: {op}, {} ms", micros / 1_000);
        }
        for (of, times) in &self.news {
            let at = |percent: usize| times[(times.len() - 1) * percent / 100];
            println!(
                "  {of} of the other process, {} times: {} µs in the median, {} µs in 95 of 100, {} µs at most",
                times.len(),
                at(50),
                at(95),
                at(100)
            );
        }
    }

    /// Nothing happened that must not.
    ///
    /// # Errors
    /// What did.
    pub fn has_no_trouble(&self) -> Result<(), String> {
        match self.troubles.first() {
            None => Ok(()),
            Some(first) => Err(format!("{} calls failed as they must not; the first: {first}", self.troubles.len())),
        }
    }

    /// Work and frames of another process came, and none took longer.
    ///
    /// # Errors
    /// What came too late or never.
    pub fn heard_news_within(&self, most: Duration) -> Result<(), String> {
        for of in ["work", "a frame"] {
            let times = self.news.get(of).ok_or_else(|| format!("{of} of the other process never came"))?;
            let worst = Duration::from_micros(times.last().copied().unwrap_or(u64::MAX));
            if times.len() < 3 || worst > most {
                return Err(format!("{of} came {} times, the latest after {worst:?}", times.len()));
            }
        }
        Ok(())
    }
}
