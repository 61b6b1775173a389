//! A pooler of one's own: it passes statements on, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::process::Command;

use ff_test_servers::pgbouncer::PgBouncer;
use ff_test_servers::postgres::{PostgresServer, PostgresServerOptions};

fn ask(url: &str, statement: &str) -> Option<String> {
    let output = Command::new("psql").args(["--no-psqlrc", "-At", "--dbname", url, "--command", statement]).output();
    let output = output.unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn a_pooler_passes_statements_on_in_its_mode_and_goes_when_it_is_dropped() {
    let server = PostgresServer::start(PostgresServerOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let settings = [("pool_mode", "session"), ("admin_users", "postgres")];
    let pooler = PgBouncer::start(&server, &settings).unwrap_or_else(|error| panic!("{error}"));
    let url = pooler.url();
    assert_ne!(url, server.url());
    assert_eq!(ask(&url, "SHOW port"), Some(server.port().to_string()));
    let console = url.replace("/postgres", "/pgbouncer").replace("//pgbouncer", "//postgres");
    let configured = ask(&console, "SHOW CONFIG").unwrap();
    assert!(configured.lines().any(|line| line.starts_with("pool_mode|session|")), "{configured}");

    drop(pooler);

    assert_eq!(ask(&url, "SHOW port"), None);
}

#[test]
fn a_pooler_that_cannot_start_says_why() {
    let server = PostgresServer::start(PostgresServerOptions::default()).unwrap_or_else(|error| panic!("{error}"));

    let Err(refused) = PgBouncer::start(&server, &[("pool_mode", "whatever")]) else { panic!("it starts") };

    assert!(refused.to_string().contains("pool_mode"), "{refused}");
}
