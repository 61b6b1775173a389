//! Whether the suite has seen every outcome it should.
//!
//! The expected table is checked in, one file per facet under `coverage/`: a line per operation, `name: outcome outcome …`.
//! Outcomes are observed by a recording layer while the suite runs; an empty cell fails, and so does an outcome nobody listed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use crate::case::run_case;
use crate::harness::Harness;
use crate::recorder::Recorder;

macro_rules! tables {
    ($($facet:literal),+ $(,)?) => {
        [$(($facet, include_str!(concat!("../coverage/", $facet, ".txt")))),+]
    };
}

const TABLES: [(&str, &str); 16] = tables![
    "ingress",
    "claims",
    "attempts",
    "leases",
    "suspension",
    "signals",
    "flows",
    "dependencies",
    "budgets",
    "quotas",
    "streams",
    "inspection",
    "workers",
    "subscriptions",
    "maintenance",
    "connection",
];

const OPERATIONS: &str = include_str!("../coverage/operations.txt");

/// Lines that say something.
fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

type Expected = BTreeMap<&'static str, BTreeMap<&'static str, BTreeSet<&'static str>>>;

fn expected() -> Expected {
    let mut table = Expected::new();
    for (facet, text) in TABLES {
        for line in lines(text) {
            let (op, outcomes) = line.split_once(':').expect("a line is `operation: outcomes`");
            table.entry(facet).or_default().insert(op.trim(), outcomes.split_whitespace().collect());
        }
    }
    table
}

/// Runs every case once, prints operation × outcome, and fails on an empty cell or an unlisted outcome.
pub fn run<H: Harness>(harness: &H) -> ExitCode {
    let recorder = Recorder::default();
    let mut broken = Vec::new();
    for case in crate::all_cases() {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_case(harness, &case, &recorder)));
        if outcome.is_err() {
            broken.push(case.name);
        }
    }
    let seen = recorder.seen();
    let mut operations = 0;
    let mut cells = 0;
    let mut empty = Vec::new();
    let mut unlisted = Vec::new();
    for (facet, rows) in expected() {
        println!("\n{facet}");
        for (op, outcomes) in rows {
            operations += 1;
            let found = seen.get(op).cloned().unwrap_or_default();
            let row = outcomes.iter().map(|outcome| {
                cells += 1;
                match found.get(*outcome) {
                    Some(times) => format!("{outcome} ×{times}"),
                    None => {
                        empty.push(format!("{op}: {outcome}"));
                        format!("{outcome} —")
                    }
                }
            });
            println!("  {op:<34} {}", row.collect::<Vec<_>>().join("  "));
            let extra = found.keys().filter(|outcome| !outcomes.contains(outcome.as_str()));
            unlisted.extend(extra.map(|outcome| format!("{op}: {outcome}")));
        }
    }
    println!("\n{operations} operations, {cells} outcomes, {} empty, {} unlisted", empty.len(), unlisted.len());
    let tabled: BTreeSet<_> = expected().into_values().flat_map(BTreeMap::into_keys).collect();
    let untabled: Vec<_> = lines(OPERATIONS).filter(|op| !tabled.contains(op)).collect();
    let unknown: Vec<_> = tabled.iter().filter(|op| !lines(OPERATIONS).any(|known| known == **op)).collect();
    report("operation without a row", &untabled);
    report("row without an operation", &unknown);
    report("case failed", &broken);
    report("outcome never seen", &empty);
    report("outcome not in the table", &unlisted);
    let full = [broken.len(), empty.len(), unlisted.len(), untabled.len(), unknown.len()] == [0; 5];
    if full { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(what: &str, items: &[impl std::fmt::Display]) {
    for item in items {
        println!("{what}: {item}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_know_of_every_operation_whether_it_may_be_repeated() {
        let known: BTreeSet<_> = ff_core::backend::layer::operations().map(|(op, _)| op).collect();
        assert_eq!(known, lines(OPERATIONS).collect());
    }
}
