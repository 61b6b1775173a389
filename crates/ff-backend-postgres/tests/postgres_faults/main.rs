//! A server that is killed, sessions that it ends, processes that die: whatever was acknowledged is there, whatever was not is there as a
//! whole or not at all, nobody who waits or follows misses anything, and callers are told nothing but to try again.
//!
//! `FF_CRASH_ROUNDS` says how often, `FF_CRASH_SEED` repeats the choices of a run.

mod crew;
mod follower;
mod rounds;
#[path = "../site/mod.rs"]
mod site;
mod takeover;
mod waits;

use std::process::ExitCode;
use std::sync::Arc;

use ff_test_load::journal::caller::{self, Manner};
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::rounds::Fault;
use crate::site::{ORDERS, Site, finish};

/// What a process of the test does, and where.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
enum Orders {
    /// Works until it is killed.
    Work { site: Site, manner: Manner },
    /// Holds what there is to hold until it is killed.
    Hold { site: Site },
}

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(ORDERS) {
        work(serde_json::from_str(&orders).expect("orders"));
        return ExitCode::FAILURE;
    }
    let survives = |fault: Fault| move || rounds::run(fault);
    let trials = vec![
        Trial::test("nothing_is_lost_when_the_server_is_killed", survives(Fault::ServerKilled)),
        Trial::test("nothing_is_lost_when_sessions_are_ended", survives(Fault::SessionsEnded)),
        Trial::test("nothing_is_lost_when_a_process_is_killed", survives(Fault::ProcessKilled)),
        Trial::test("a_lost_acknowledgement_would_be_noticed", rounds::a_loss),
        Trial::test("the_work_of_a_dead_process_is_taken_over_in_time", takeover::run),
        Trial::test("who_waits_gets_it_although_the_server_was_killed", || waits::run(waits::Fault::ServerKilled)),
        Trial::test("who_waits_gets_it_although_sessions_were_ended", || waits::run(waits::Fault::SessionsEnded)),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn work(orders: Orders) {
    finish(async {
        match orders {
            Orders::Work { site, manner } => {
                let backend = site.open(None).await.expect("the store opens");
                caller::work(Arc::new(backend), &manner).await;
            }
            Orders::Hold { site } => takeover::hold(&site).await,
        }
    });
}

/// A server that keeps what it has committed.
fn start() -> Result<(PostgresServer, Site), Failed> {
    let server = PostgresServer::start(PostgresServerOptions::default().durable(true))?;
    let site = Site { url: server.url(), schema: "faults".to_owned() };
    Ok((server, site))
}

/// Ends sessions of stores, so many or all of them; says how many.
fn end_sessions(server: &PostgresServer, many: Option<usize>) -> Result<usize, Failed> {
    let limit = many.map_or("ALL".to_owned(), |many| many.to_string());
    let told = server.run(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
         WHERE application_name IN ('flowfabric', '{}') ORDER BY random() LIMIT {limit}) AS chosen",
        crew::APPLICATION
    ))?;
    Ok(told.parse()?)
}
