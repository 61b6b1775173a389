//! What to measure, and the numbers every scenario shares.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::stores::Subject;
use crate::yardsticks::Yardstick;

/// Numbers of callers that the lifecycle is measured with; the first one is used everywhere else.
pub const CALLERS: [usize; 2] = [16, 256];

/// Bytes of an input.
pub const PAYLOAD_BYTES: usize = 100;

/// Bytes of a result.
pub const RESULT_BYTES: usize = 20;

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 200;

/// Steps of a chain.
pub const CHAIN_STEPS: usize = 10;

/// Delays that end while somebody looks how late they do.
pub const TIMERS: usize = 1_000;

/// Waiting executions of the backlog that the large one is compared with.
pub const WAITING_FEW: u64 = 10_000;

/// Before a side is measured it runs for this part of the measured time.
const WARM_UP: f64 = 0.1;

/// Measures FlowFabric beside a queue written by hand on the same store.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// What is measured.
    #[arg(long, value_enum, default_value_t = StoreKind::Sqlite)]
    pub store: StoreKind,
    /// When SQLite waits for the disk; of no meaning to other stores.
    #[arg(long, value_enum, default_value_t = Synchronous::Full)]
    pub synchronous: Synchronous,
    /// Takes the general way where a store has a short one; of no meaning to the store in memory.
    #[arg(long)]
    pub no_fast_paths: bool,
    /// How often each side is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// How long each measurement of a round lasts.
    #[arg(long, default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Waiting executions of the large backlog.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(WAITING_FEW..=100_000_000))]
    pub waiting: u64,
    /// Only these scenarios, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Scenario>,
    /// How long a foreign transaction is open while others work; Postgres only.
    #[arg(long, default_value = "120", value_parser = seconds)]
    pub foreign_seconds: f64,
    /// How long nobody has work while what is asked of a server is counted; on servers only.
    #[arg(long, default_value = "60", value_parser = seconds)]
    pub idle_seconds: f64,
    /// Where files are written while measuring; on a disk. Servers keep their own in the folder for temporary files.
    #[arg(long, default_value = "target/ff-bench")]
    pub dir: PathBuf,
}

/// Stores that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// The model in memory; has no yardstick.
    Memory,
    /// A file.
    Sqlite,
    /// A server of its own, started for the run, that waits for the disk at every commit.
    Postgres,
    /// A server of its own, started for the run, that writes to disk every second.
    Valkey,
    /// A cluster of three such servers; has no yardstick.
    ValkeyCluster,
}

/// When SQLite waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Synchronous {
    /// At every commit.
    Full,
    /// At checkpoints.
    Normal,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// The yardsticks alone; only when asked for.
    Bare,
    /// Submit, claim, complete.
    Lifecycle,
    /// The same with a long queue.
    Backlog,
    /// The hand-off between the steps of a flow.
    Chain,
    /// Suspend, signal, resume.
    Suspend,
    /// Appending frames.
    Stream,
    /// What users of workers wait for.
    Worker,
    /// Delays that end.
    Timers,
    /// Lifecycles beside a foreign transaction that stays open.
    Foreign,
    /// What workers without work cost, and how fast they begin.
    Idle,
}

impl Scenario {
    /// The name on the command line, in the table and in the JSON object.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Lifecycle => "lifecycle",
            Self::Backlog => "backlog",
            Self::Chain => "chain",
            Self::Suspend => "suspend",
            Self::Stream => "stream",
            Self::Worker => "worker",
            Self::Timers => "timers",
            Self::Foreign => "foreign",
            Self::Idle => "idle",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.01..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("between 0.01 and 3600".to_owned()) }
}

impl Options {
    /// The scenarios to run, in their order.
    ///
    /// # Errors
    /// When one was asked for that the store does not offer.
    pub fn chosen(&self, subject: &dyn Subject) -> Result<Vec<Scenario>> {
        if let Some(missing) = self.only.iter().find(|scenario| !subject.offers(**scenario)) {
            bail!("{missing} cannot be measured on this store");
        }
        let by_default = |scenario: Scenario| scenario != Scenario::Bare && subject.offers(scenario);
        let wanted = |scenario: &Scenario| match self.only.is_empty() {
            true => by_default(*scenario),
            false => self.only.contains(scenario),
        };
        Ok(Scenario::value_variants().iter().copied().filter(wanted).collect())
    }

    /// How long one measurement lasts.
    pub fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// How long a side runs before it is measured.
    pub fn warm_up(&self) -> Duration {
        self.measured().mul_f64(WARM_UP)
    }

    /// How long a foreign transaction is open.
    pub fn foreign(&self) -> Duration {
        Duration::from_secs_f64(self.foreign_seconds)
    }

    /// How long nobody has work.
    pub fn idle(&self) -> Duration {
        Duration::from_secs_f64(self.idle_seconds)
    }

    /// Under which conditions the numbers hold.
    pub fn facts(&self, subject: &dyn Subject, runtime_workers: usize) -> Facts {
        let on_sqlite = self.store == StoreKind::Sqlite;
        let comparisons = subject.yardstick().map(Yardstick::comparisons);
        Facts {
            store: self.store,
            synchronous: on_sqlite.then_some(self.synchronous),
            fast_paths: (self.store != StoreKind::Memory).then_some(!self.no_fast_paths),
            engine: subject.engine(),
            file_system: subject.file_system(),
            rounds: self.rounds,
            seconds: self.seconds,
            callers: CALLERS,
            group_max: comparisons.and_then(|each| each.iter().map(|one| one.in_flight.group_max).max()),
            waiting: [WAITING_FEW, self.waiting],
            chain_steps: CHAIN_STEPS,
            payload_bytes: PAYLOAD_BYTES,
            result_bytes: RESULT_BYTES,
            frame_bytes: FRAME_BYTES,
            cpus: std::thread::available_parallelism().map_or(0, Into::into),
            runtime_workers,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Under which conditions a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// What was measured.
    pub store: StoreKind,
    /// When SQLite waited for the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synchronous: Option<Synchronous>,
    /// The database underneath, with its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The kind of file system that held the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// Whether hot operations took their short way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_paths: Option<bool>,
    /// How often each side was measured.
    pub rounds: u32,
    /// How long each measurement lasted.
    pub seconds: f64,
    /// Numbers of callers.
    pub callers: [usize; 2],
    /// Most calls of a transaction of the yardstick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_max: Option<usize>,
    /// Sizes of the two backlogs.
    pub waiting: [u64; 2],
    /// Steps of a chain.
    pub chain_steps: usize,
    /// Bytes of an input.
    pub payload_bytes: usize,
    /// Bytes of a result.
    pub result_bytes: usize,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Processors this process may use.
    pub cpus: usize,
    /// Threads that ran the callers.
    pub runtime_workers: usize,
    /// Of this program.
    pub version: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::memory::Memory;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from(["ff-bench"].iter().chain(arguments))
    }

    #[test]
    fn everything_runs_unless_something_is_chosen() {
        let everything = parse(&[]).unwrap().chosen(&Memory).unwrap();
        assert_eq!((everything.first(), everything.last()), (Some(&Scenario::Lifecycle), Some(&Scenario::Timers)));
        assert_eq!(everything.len(), 7);
        let some = parse(&["--only", "stream,lifecycle"]).unwrap();
        assert_eq!(some.chosen(&Memory).unwrap(), [Scenario::Lifecycle, Scenario::Stream]);
    }

    #[test]
    fn what_a_store_does_not_offer_is_refused() {
        for scenario in ["bare", "foreign", "idle"] {
            let refused = parse(&["--only", scenario]).unwrap().chosen(&Memory).unwrap_err();
            assert_eq!(refused.to_string(), format!("{scenario} cannot be measured on this store"));
        }
    }

    #[test]
    fn unknown_and_senseless_input_is_refused() {
        for arguments in [
            &["--only", "lunch"][..],
            &["--store", "tape"],
            &["--rounds", "0"],
            &["--seconds", "0"],
            &["--seconds", "inf"],
            &["--foreign-seconds", "-1"],
            &["--waiting", "9999"],
            &["extra"],
            &["--fast"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }
}
