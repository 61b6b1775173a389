//! Processes that wait: they are woken, and do not look by themselves.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_backend_postgres::PostgresBackend;
use ff_core::backend::Connection;
use ff_test_load::feed::Reader;
use ff_test_load::processes::{PROCESSES, claim, create};
use ff_test_load::site::{Site as _, command, finish};
use ff_test_servers::postgres::PostgresServer;
use libtest_mimic::Failed;

use crate::site::Site;
use crate::{Orders, start};

/// As long as a call may wait.
const WAIT_MS: u64 = 30_000;

/// How long nothing is asked.
const WINDOW: Duration = Duration::from_secs(2);

/// How long everybody may take to be still.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long everybody may take to wake up: far less than until everybody looks in any case.
const WAKE_MAX: Duration = Duration::from_secs(5);

/// How long a store may take to close.
const CLOSING: Duration = Duration::from_secs(5);

/// Sessions of stores that have asked something since a moment.
const ASKED: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'flowfabric' AND query_start > ";

/// Waits for work and for the end of it, in a process of its own.
pub(crate) async fn wait(backend: Arc<PostgresBackend>) {
    let reading = {
        let backend = backend.clone();
        tokio::spawn(async move { Reader::of(backend.store()).await?.next(backend.store()).await })
    };
    let mut out = std::io::stdout();
    writeln!(out, "waits").and_then(|()| out.flush()).expect("somebody listens");
    let is_claimed = claim(&*backend, &format!("rest-{}", std::process::id()), WAIT_MS).await.expect("a claim");
    let seen = reading.await.expect("a reader").expect("events");
    writeln!(out, "{is_claimed} {}", !seen.is_empty()).expect("somebody listens");
}

#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub(crate) fn run() -> Result<(), Failed> {
    let (server, site) = start()?;
    let orders = Orders { site: site.clone(), shift: None };
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        children.push(command(&orders)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    }
    let outcome = rest_and_wake(&server, &site, &mut children);
    for child in &mut children {
        // One that has ended by itself is as dead.
        let _ = child.kill();
        child.wait()?;
    }
    println!("nothing was asked for {WINDOW:?}; all were awake after {:?}", outcome?);
    Ok(())
}

fn rest_and_wake(server: &PostgresServer, site: &Site, children: &mut [Child]) -> Result<Duration, Failed> {
    let mut lines: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().expect("a pipe")).lines()).collect();
    for lines in &mut lines {
        lines.next().ok_or("a process ended")??;
    }
    until_still(server)?;
    std::thread::sleep(WINDOW);
    let asked = server.run(&format!("{ASKED} now() - interval '{} ms'", WINDOW.as_millis()))?;
    if asked != "0" {
        return Err(format!("{asked} sessions asked for something while all processes waited").into());
    }
    finish(async {
        let backend = site.open(None).await?;
        create(&backend, PROCESSES).await?;
        // What is told apart from commits must not be lost with the process.
        backend.shutdown_prepare(CLOSING).await
    })?;
    let began = Instant::now();
    for lines in &mut lines {
        let told = lines.next().ok_or("a process ended")??;
        if told != "true true" {
            return Err(format!("work and events of another process: {told}").into());
        }
    }
    match began.elapsed() {
        late if late > WAKE_MAX => Err(format!("the last one woke up after {late:?}").into()),
        taken => Ok(taken),
    }
}

/// Waits until what processes do at their beginning is done.
fn until_still(server: &PostgresServer) -> Result<(), Failed> {
    let began = Instant::now();
    while server.run(&format!("{ASKED} now() - interval '1 s'"))? != "0" {
        if began.elapsed() > PATIENCE {
            return Err("processes that wait ask the server again and again".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
