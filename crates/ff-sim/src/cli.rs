//! The command: a narrated tour, seeds in bulk, one seed in full.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command's face")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ff_engine::memory::MemoryStore;

use crate::history::Tally;
use crate::run::{Plan, Report, run, run_on};
use crate::{Class, Invariant, demo};

const USAGE: &str = "\
ff-sim                                             a short tour of the engine
ff-sim sim --seeds N --steps M                     plays seeds and checks every invariant
           [--first-seed K] [--threads T]
ff-sim replay --seed K --steps M                   prints the whole history of a seed
ff-sim reference --seed K --steps M                the same, played as other stores are compared with it
ff-sim invariants                                  lists what is checked";

/// What the command is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Tour,
    Sim { seeds: u64, steps: usize, first_seed: u64, threads: usize },
    Replay { seed: u64, steps: usize },
    Reference { seed: u64, steps: usize },
    Invariants,
}

/// Runs the command with the arguments after its name.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    match parse(&arguments.collect::<Vec<_>>()) {
        Ok(Command::Tour) => show_tour(),
        Ok(Command::Sim { seeds, steps, first_seed, threads }) => simulate(seeds, steps, first_seed, threads),
        Ok(Command::Replay { seed, steps }) => replay(&run(Plan { seed, steps, whole: true })),
        Ok(Command::Reference { seed, steps }) => reference(seed, steps),
        Ok(Command::Invariants) => list_invariants(),
        Err(why) => {
            eprintln!("{why}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn show_tour() -> ExitCode {
    let (lines, sound) = demo::tour();
    lines.iter().for_each(|line| println!("{line}"));
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(arguments: &[String]) -> Result<Command, String> {
    let Some((command, rest)) = arguments.split_first() else { return Ok(Command::Tour) };
    let (known, needed): (&[&str], &[&str]) = match command.as_str() {
        "sim" => (&["--seeds", "--steps", "--first-seed", "--threads"], &["--seeds", "--steps"]),
        "replay" | "reference" => (&["--seed", "--steps"], &["--seed", "--steps"]),
        "invariants" => (&[], &[]),
        other => return Err(format!("unknown command {other:?}")),
    };
    let options = options(rest, known)?;
    if let Some(missing) = needed.iter().find(|name| !options.contains_key(**name)) {
        return Err(format!("{command} needs {missing}"));
    }
    let number = |name: &str, default: u64| options.get(name).copied().unwrap_or(default);
    let size =
        |name: &str, default: u64| usize::try_from(number(name, default)).map_err(|_| format!("{name} is too large"));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    Ok(match command.as_str() {
        "sim" => Command::Sim {
            seeds: number("--seeds", 0),
            steps: size("--steps", 0)?,
            first_seed: number("--first-seed", 0),
            threads: size("--threads", cores)?.max(1),
        },
        "replay" => Command::Replay { seed: number("--seed", 0), steps: size("--steps", 0)? },
        "reference" => Command::Reference { seed: number("--seed", 0), steps: size("--steps", 0)? },
        _ => Command::Invariants,
    })
}

fn options(rest: &[String], known: &[&str]) -> Result<BTreeMap<String, u64>, String> {
    let mut options = BTreeMap::new();
    for pair in rest.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a number", pair[0])) };
        if !known.contains(&name.as_str()) {
            return Err(format!("unknown option {name:?}"));
        }
        let number = value.parse().map_err(|_| format!("{name}: {value:?} is not a number"))?;
        options.insert(name.clone(), number);
    }
    Ok(options)
}

/// What several threads find out together.
#[derive(Default)]
struct Tallied {
    passed: u64,
    steps: u64,
    tally: BTreeMap<&'static str, Tally>,
    failed: Vec<Report>,
}

impl Tallied {
    fn add(&mut self, report: Report) {
        self.steps += report.steps as u64;
        for (op, tally) in &report.tally {
            let sum = self.tally.entry(op).or_default();
            sum.done += tally.done;
            sum.refused += tally.refused;
            sum.lost += tally.lost;
        }
        if report.violation.is_some() {
            self.failed.push(report);
        } else {
            self.passed += 1;
        }
    }
}

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(5);

fn simulate(seeds: u64, steps: usize, first_seed: u64, threads: usize) -> ExitCode {
    println!("{seeds} seeds from {first_seed}, {steps} steps each, {threads} threads");
    let began = Instant::now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let found = Mutex::new((Tallied::default(), Instant::now()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= seeds {
                        return;
                    }
                    let report = run(Plan::new(first_seed + number, steps));
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    stop.fetch_or(report.violation.is_some(), Ordering::Relaxed);
                    found.0.add(report);
                    if found.1.elapsed() > PROGRESS {
                        found.1 = Instant::now();
                        println!("  {} of {seeds} seeds passed, {}", found.0.passed, speed(found.0.steps, began));
                    }
                }
            });
        }
    });
    let (found, _) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    conclude(&found, seeds, began)
}

fn speed(steps: u64, began: Instant) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = steps as f64 / began.elapsed().as_secs_f64().max(0.001);
    format!("{rate:.0} steps per second")
}

fn conclude(found: &Tallied, seeds: u64, began: Instant) -> ExitCode {
    println!("\n{:<36} {:>10} {:>10} {:>8}", "operation", "done", "refused", "lost");
    for (op, tally) in &found.tally {
        println!("{op:<36} {:>10} {:>10} {:>8}", tally.done, tally.refused, tally.lost);
    }
    println!();
    // The smallest seed, so that the answer does not depend on threads.
    if let Some(report) = found.failed.iter().min_by_key(|report| report.plan.seed) {
        print_failure(report);
        return ExitCode::FAILURE;
    }
    let (steps, elapsed) = (found.steps, began.elapsed().as_secs());
    println!("{} of {seeds} seeds passed: {steps} steps in {elapsed} s, {}", found.passed, speed(steps, began));
    ExitCode::SUCCESS
}

fn print_failure(report: &Report) {
    println!("seed {} after {} steps: the last of its history", report.plan.seed, report.steps);
    for line in &report.history {
        println!("{line}");
    }
    if let Some(violation) = &report.violation {
        println!("\nviolated: {}", violation.invariant);
        println!("seen:     {}", crate::history::shorten(&violation.detail));
        println!("again:    ff-sim replay --seed {} --steps {}", report.plan.seed, report.plan.steps);
    }
}

fn reference(seed: u64, steps: usize) -> ExitCode {
    match run_on(Plan { seed, steps, whole: true }, async |clock| Ok(MemoryStore::new(clock))) {
        Ok(report) => replay(&report),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn replay(report: &Report) -> ExitCode {
    print_failure(report);
    if report.violation.is_some() {
        return ExitCode::FAILURE;
    }
    println!("\nevery invariant held; digest {:016x}", report.digest);
    ExitCode::SUCCESS
}

fn list_invariants() -> ExitCode {
    for invariant in Invariant::ALL {
        let class = match invariant.class() {
            Class::EveryStep => "after every commit",
            Class::Quiescence => "at rest",
            Class::AcrossStores => "by comparing stores, in their tests",
        };
        println!("{invariant} [{class}]");
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn commands_are_understood() {
        let sim = Command::Sim { seeds: 3, steps: 5, first_seed: 7, threads: 2 };

        assert_eq!(parsed(""), Ok(Command::Tour));
        assert_eq!(parsed("sim --seeds 3 --steps 5 --first-seed 7 --threads 2"), Ok(sim));
        assert_eq!(parsed("replay --seed 4 --steps 9"), Ok(Command::Replay { seed: 4, steps: 9 }));
        assert_eq!(parsed("reference --seed 4 --steps 9"), Ok(Command::Reference { seed: 4, steps: 9 }));
    }

    #[test]
    fn mistakes_are_told() {
        for (line, why) in [
            ("dance", "unknown command"),
            ("sim --steps 5", "needs --seeds"),
            ("sim --seeds three --steps 5", "not a number"),
            ("sim --seeds", "needs a number"),
            ("replay --seeds 4", "unknown option"),
        ] {
            assert!(parsed(line).is_err_and(|told| told.contains(why)), "{line}");
        }
    }
}
