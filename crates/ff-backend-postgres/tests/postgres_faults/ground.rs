//! A server that things happen to.

use std::time::{Duration, Instant};

use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};
use libtest_mimic::Failed;

use crate::site::Site;

/// How long sessions may take to end, or to fall still.
const PATIENCE: Duration = Duration::from_secs(40);

/// The name of the sessions of the load.
const APPLICATION: &str = "ff_load";

pub(crate) struct Ground {
    pub(crate) server: PostgresServer,
}

impl Ground {
    /// A server that keeps what it has committed.
    pub(crate) fn start() -> Result<Self, Failed> {
        Ok(Self { server: PostgresServer::start(PostgresServerOptions::default().durable(true))? })
    }

    /// Ends sessions of stores, so many or all of them.
    pub(crate) fn end_sessions(&self, many: Option<usize>) -> Result<(), Failed> {
        let limit = many.map_or("ALL".to_owned(), |many| many.to_string());
        self.server.run(&format!(
            "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
             WHERE application_name IN ('flowfabric', '{APPLICATION}') ORDER BY random() LIMIT {limit}) AS chosen"
        ))?;
        Ok(())
    }

    /// Waits until there are no such sessions any more.
    fn wait_for_none(&self, sessions: &str, complaint: &'static str) -> Result<(), Failed> {
        let began = Instant::now();
        while self.server.run(&format!("SELECT count(*) FROM pg_stat_activity WHERE {sessions}"))? != "0" {
            if began.elapsed() > PATIENCE {
                return Err(complaint.into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl ff_test_load::faults::Ground for Ground {
    type Site = Site;

    fn site(&self) -> Site {
        Site { url: self.server.url(), schema: "faults".to_owned() }
    }

    fn site_of_load(&self) -> Site {
        Site { url: format!("{}?application_name={APPLICATION}", self.server.url()), ..self.site() }
    }

    fn outlive_the_dead(&self) -> Result<(), Failed> {
        let sessions = format!("application_name = '{APPLICATION}'");
        self.wait_for_none(&sessions, "the sessions of dead processes do not end")
    }

    fn wait_until_still(&self) -> Result<(), Failed> {
        let sessions = "application_name = 'flowfabric' AND query_start > now() - interval '300 ms'";
        self.wait_for_none(sessions, "who waits asks the server again and again")
    }
}
