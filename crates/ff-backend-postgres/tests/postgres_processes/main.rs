//! Four processes on one schema: under mixed load no error but documented ones, nothing is owned twice, everybody sees everything that happens,
//! everything ends; and at rest nobody asks the server for anything.
//!
//! `FF_LOAD_SECONDS` says for how long.

mod rest;
#[path = "../site/mod.rs"]
mod site;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ff_backend_postgres::PostgresStore;
use ff_engine::store::Inspect;
use ff_test_load::mixed::report::Report;
use ff_test_load::mixed::{self, Shift, work_together};
use ff_test_load::{drain, feed, owners};
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::site::{ORDERS, Site, command, finish, has_sound_indexes};

/// That share a schema.
const PROCESSES: usize = 4;

/// News must not take longer than this to reach another process, however busy the machine is.
const NEWS_MAX: Duration = Duration::from_secs(5);

/// What a process does, and where.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Orders {
    site: Site,
    /// None for one that only waits.
    shift: Option<Shift>,
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
    let (_, events) = drain::everything_ends(&backend, &clock, &mixed::lanes(PROCESSES)).await?;
    owners::nothing_is_owned_twice(&events)?;
    Ok(has_sound_indexes(backend.store()).await?)
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
