//! Four processes on one schema: under mixed load no error but documented ones, nothing is owned twice, everybody sees everything that happens,
//! everything ends; and at rest nobody asks the server for anything.
//!
//! `FF_LOAD_SECONDS` says for how long.

mod rest;

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use ff_backend_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use ff_core::Result;
use ff_engine::clock::Clock;
use ff_engine::store::{Inspect, Store};
use ff_engine::{Engine, Settings};
use ff_test_load::mixed::report::Report;
use ff_test_load::mixed::{self, Shift, work_together};
use ff_test_load::{drain, feed, owners};
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use libtest_mimic::{Arguments, Failed, Trial};

/// Set for a process of the test: its orders.
const ORDERS: &str = "FF_LOAD_ORDERS";

/// That share a schema.
const PROCESSES: usize = 4;

/// News must not take longer than this to reach another process, however busy the machine is: less than a claim or a reader waits
/// before it asks again.
const NEWS_MAX: Duration = Duration::from_millis(900);

/// What a process does, and where.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Orders {
    site: Site,
    /// None for one that only waits.
    shift: Option<Shift>,
}

/// Where a store is.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Site {
    url: String,
    schema: String,
}

impl Site {
    fn options(&self) -> Result<PostgresOptions> {
        PostgresOptions::new(&self.url)?.schema(&self.schema)
    }

    async fn open(&self, clock: Option<Arc<dyn Clock>>) -> Result<PostgresBackend> {
        let options = self.options()?;
        let options = if let Some(clock) = clock { options.clock(clock) } else { options };
        Engine::open(PostgresStore::connect(options).await?, Settings::default()).await
    }
}

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(ORDERS) {
        work(&serde_json::from_str(&orders).expect("orders"));
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        Trial::test("four_processes_share_a_schema", share_a_schema),
        Trial::test("four_processes_that_wait_ask_the_server_for_nothing", rest::run),
        Trial::test("a_reader_that_misses_an_event_would_be_noticed", a_gap),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn finish<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Works as ordered.
fn work(orders: &Orders) {
    finish(async {
        let backend = Arc::new(orders.site.open(None).await.expect("the store opens"));
        match orders.shift {
            Some(shift) => mixed::work(backend, shift).await,
            None => rest::wait(backend).await,
        }
    });
}

fn start() -> Result<(PostgresServer, Site), Failed> {
    let server = PostgresServer::start(PostgresServerOptions::default())?;
    let site = Site { url: server.url(), schema: "shared".to_owned() };
    Ok((server, site))
}

fn command(orders: &Orders) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ORDERS, serde_json::to_string(orders)?);
    Ok(command)
}

fn share_a_schema() -> Result<(), Failed> {
    let seconds = std::env::var("FF_LOAD_SECONDS").map_or(5, |text| text.parse().expect("a number"));
    let (_server, site) = start()?;
    let shifts = (0..PROCESSES).map(|process| Shift { process, processes: PROCESSES, seconds });
    let commands = shifts.map(|shift| command(&Orders { site: site.clone(), shift: Some(shift) }));
    // They make the schema at once, too.
    let reports = work_together(commands.collect::<Result<_, _>>()?)?;
    for (process, report) in reports.iter().enumerate() {
        report.show(process);
    }
    finish(judge(&site, &reports))
}

async fn judge(site: &Site, reports: &[Report]) -> Result<(), Failed> {
    let clock = drain::later();
    let backend = site.open(Some(Arc::new(clock.clone()))).await?;
    let events = backend.store().event_log().await?;
    for report in reports {
        report.has_no_trouble()?;
        report.heard_news_within(NEWS_MAX)?;
        feed::saw_everything_once(&report.seen, &events)?;
    }
    owners::nothing_is_claimed_twice(reports.iter().flat_map(|report| &report.claims))?;
    let (records, events) = drain::everything_ends(&backend, &clock, &mixed::lanes(PROCESSES)).await?;
    owners::nothing_is_owned_twice(&events)?;
    let partitions: std::collections::BTreeSet<_> = records.iter().map(|record| record.key().partition).collect();
    for (number, partition) in partitions.into_iter().enumerate() {
        let (_, repaired) = backend.store().reindex_in_round(partition, number == 0).await?;
        if repaired > 0 {
            return Err(format!("{repaired} index entries of {partition:?} were wrong").into());
        }
    }
    Ok(())
}

fn a_gap() -> Result<(), Failed> {
    let (_server, site) = start()?;
    finish(async {
        let backend = site.open(None).await?;
        rest::create(&backend, 3).await?;
        rest::claim_all(&backend, 3).await?;
        let events = backend.store().event_log().await?;
        let mut seen = feed::Reader::of::<PostgresStore>().next(backend.store()).await?;
        feed::saw_everything_once(&seen, &events)?;
        seen.pop().ok_or("nothing was seen")?;
        match feed::saw_everything_once(&seen, &events) {
            Ok(()) => Err("nobody noticed".into()),
            Err(_) => Ok(()),
        }
    })
}
