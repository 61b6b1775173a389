//! Two stores, one history: whatever one answers, the other answers, too.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use ff_core::{EngineError, Result};
use ff_engine::clock::Clock;
use ff_engine::store::Inspect;

use crate::run::{Plan, Played, Report, play_in_turn};
use crate::transcript::{Parting, Transcript};
use crate::trouble::{Course, Script};
use crate::world::Setting;

/// What two stores agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// How many answers were compared.
    pub answers: usize,
    /// How many transactions were compared.
    pub transactions: usize,
}

/// Where two stores part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What was played.
    pub plan: Plan,
    /// The step in which it showed.
    pub step: usize,
    /// The call, or what else was looked at.
    pub call: String,
    /// What came of it on the reference.
    pub reference: String,
    /// What came of it on the other store.
    pub other: String,
    /// What happened on the other store before, line by line.
    pub history: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.history {
            writeln!(f, "{line}")?;
        }
        let Plan { seed, steps, .. } = self.plan;
        writeln!(f, "\nseed {seed}, step {}: {}", self.step, self.call)?;
        writeln!(f, "reference: {}", self.reference)?;
        writeln!(f, "other:     {}", self.other)?;
        writeln!(f, "again:     ff_sim::compare(Plan::new({seed}, {steps}), ..) on the same two stores")?;
        write!(f, "reference: ff-sim reference --seed {seed} --steps {steps}")
    }
}

impl std::error::Error for Difference {}

/// Plays the same history on two stores and compares what every call answers, what handles hold, which transactions commit and,
/// every few steps and at the end, all records and events. Both functions make their store, empty, on the clock they are given.
///
/// Conflicts, failures before a commit and lost replies strike both alike. The other store runs its operations as they come, so
/// it may recognise them and take its shortcuts.
///
/// # Errors
/// The first difference; a store that cannot be opened or an invariant that does not hold is one, too.
///
/// # Panics
/// Inside of an asynchronous runtime: each history has one of its own.
pub fn compare<R: Inspect, O: Inspect>(
    plan: Plan,
    reference: impl AsyncFnOnce(Arc<dyn Clock>) -> Result<R>,
    other: impl AsyncFnOnce(Arc<dyn Clock>) -> Result<O>,
) -> std::result::Result<Agreement, Box<Difference>> {
    let course = Course::Recorded(Script::new());
    let setting = Setting::InTurn { course, transcript: Transcript::Written(VecDeque::new()) };
    let first = play_in_turn(plan, reference, setting).map_err(|error| unopened(plan, &error, true))?;
    if let Some(violation) = &first.report.violation {
        let seen = format!("violated {}: {}", violation.invariant, violation.detail);
        return Err(parted(&first.report, "the invariants", seen, "not played".to_owned()));
    }
    let agreement = Agreement { answers: first.transcript.left(), transactions: first.script.len() };
    let setting =
        Setting::InTurn { course: Course::Scripted(first.script), transcript: first.transcript.into_compared() };
    let second = play_in_turn(plan, other, setting).map_err(|error| unopened(plan, &error, false))?;
    match second.difference() {
        Some(difference) => Err(difference),
        None => Ok(agreement),
    }
}

impl Played {
    /// Where it left what was written down.
    fn difference(self) -> Option<Box<Difference>> {
        let (report, left) = (&self.report, self.transcript.left());
        if let Transcript::Compared { parting: Some(parting), .. } = self.transcript {
            return Some(parted_at(report, parting));
        }
        if let Some(violation) = &report.violation {
            let call = format!("invariant {}", violation.invariant);
            return Some(parted(report, &call, "holds".to_owned(), violation.detail.clone()));
        }
        (left > 0).then(|| parted(report, "the end", format!("{left} more calls"), "no more calls".to_owned()))
    }
}

fn parted_at(report: &Report, parting: Parting) -> Box<Difference> {
    let Parting { step, call, reference, other } = parting;
    Box::new(Difference { plan: report.plan, step, call, reference, other, history: report.history.clone() })
}

fn parted(report: &Report, call: &str, reference: String, other: String) -> Box<Difference> {
    parted_at(report, Parting { step: report.steps, call: call.to_owned(), reference, other })
}

fn unopened(plan: Plan, error: &EngineError, is_reference: bool) -> Box<Difference> {
    let (failed, untouched) = (format!("{error:?}"), "not asked".to_owned());
    let (reference, other) = if is_reference { (failed, untouched) } else { (untouched, failed) };
    Box::new(Difference { plan, step: 0, call: "to open".to_owned(), reference, other, history: Vec::new() })
}
