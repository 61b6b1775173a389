//! Four processes on one schema: under mixed load no error but documented ones, nothing is owned twice, everybody sees everything that happens,
//! everything ends; and at rest nobody asks the server for anything.
//!
//! `FF_LOAD_SECONDS` says for how long.

mod rest;
#[path = "../site/mod.rs"]
mod site;

use std::process::ExitCode;
use std::sync::Arc;

use ff_test_load::mixed::{self, Shift};
use ff_test_load::processes;
use ff_test_load::site::{Site as _, command, finish, orders};
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::site::Site;

/// What a process does, and where.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Orders {
    site: Site,
    /// None for one that only waits.
    shift: Option<Shift>,
}

fn main() -> ExitCode {
    if let Some(orders) = orders() {
        work(&orders);
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
    let (_server, site) = start()?;
    // They make the schema at once, too.
    processes::share(&site, |shift| command(&Orders { site: site.clone(), shift: Some(shift) }))
}

fn a_gap() -> Result<(), Failed> {
    let (_server, site) = start()?;
    processes::a_gap_is_noticed(&site)
}
