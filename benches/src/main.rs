//! Measures FlowFabric beside a queue written by hand on the same store, in the same run.
//!
//! `scenarios` say what is measured, `stores` on what, `yardsticks` beside what; `report` prints a table and, as the last
//! line, one JSON object.

mod disk;
mod latency;
mod postgres;
mod process;
mod report;
mod rounds;
mod scenarios;
mod settings;
mod stores;
mod valkey;
mod work;
mod yardsticks;

use anyhow::Result;
use clap::Parser;

use crate::report::Report;
use crate::settings::{Options, Scenario};
use crate::stores::Subject;

/// The same for the engine and its yardsticks; it keeps what threads free, where the system's gives it back and asks again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Threads that run the callers.
const RUNTIME_WORKERS: usize = 2;

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(RUNTIME_WORKERS).enable_all().build()?;
    let report = runtime.block_on(measure(&options))?;
    println!("\n{}", report.table());
    println!("{}", report.json()?);
    Ok(())
}

async fn measure(options: &Options) -> Result<Report> {
    let subject = stores::subject(options).await?;
    let mut report = Report::new(options.facts(&*subject, RUNTIME_WORKERS));
    for scenario in options.chosen(&*subject)? {
        println!("==> {scenario}");
        run(scenario, &*subject, options, &mut report).await?;
    }
    Ok(report)
}

async fn run(scenario: Scenario, subject: &dyn Subject, options: &Options, report: &mut Report) -> Result<()> {
    match scenario {
        Scenario::Bare => report.bare = Some(scenarios::bare::run(subject, options).await?),
        Scenario::Lifecycle => report.lifecycle = Some(scenarios::lifecycle::run(subject, options).await?),
        Scenario::Backlog => report.backlog = Some(scenarios::backlog::run(subject, options).await?),
        Scenario::Chain => report.chain = Some(scenarios::chain::run(subject, options).await?),
        Scenario::Suspend => report.suspend = Some(scenarios::suspend::run(subject, options).await?),
        Scenario::Stream => report.stream = Some(scenarios::stream::run(subject, options).await?),
        Scenario::Worker => report.worker = Some(scenarios::worker::run(subject, options).await?),
        Scenario::Timers => report.timers = Some(scenarios::timers::run(subject, options).await?),
        Scenario::Foreign => report.foreign = Some(scenarios::foreign::run(subject, options).await?),
        Scenario::Idle => report.idle = Some(scenarios::idle::run(subject, options).await?),
    }
    Ok(())
}
