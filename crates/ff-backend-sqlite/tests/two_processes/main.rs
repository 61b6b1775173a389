//! Two processes on one file under mixed load: no error but documented ones, nothing is owned twice, everything ends.
//!
//! `FF_LOAD_SECONDS` says for how long.

#[path = "../support/drain.rs"]
mod drain;
mod load;
mod ping;
mod report;
#[path = "../support/seal.rs"]
mod seal;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ff_backend_sqlite::{SqliteOptions, SqliteStore};
use ff_core::backend::subscriptions::LeaseChange;
use ff_core::ids::ExecutionId;
use ff_engine::event::{Event, EventBody};
use ff_engine::{Engine, Settings};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::load::Orders;
use crate::report::{Line, Report};

/// Set for a process of the test: its orders.
const ORDERS: &str = "FF_LOAD_ORDERS";

/// Set for a process that only opens a file.
const OPEN: &str = "FF_OPEN_NEW_FILE";

/// News must not take longer than this to reach the other process, however busy the machine is.
const NEWS_MAX: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(ORDERS) {
        load::run(&serde_json::from_str(&orders).expect("orders"));
        return ExitCode::SUCCESS;
    }
    if let Some(path) = std::env::var_os(OPEN) {
        return open_only(Path::new(&path));
    }
    let trials = vec![
        Trial::test("two_processes_share_a_file", share_a_file),
        Trial::test("several_processes_make_a_file_at_once", make_a_file_at_once),
        Trial::test("an_ownership_that_was_given_twice_would_be_noticed", given_twice),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn finish<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
}

fn share_a_file() -> Result<(), Failed> {
    let seconds = std::env::var("FF_LOAD_SECONDS").map_or(5, |text| text.parse().expect("a number"));
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("shared.db");
    let orders = |process: usize| Orders { file: file.clone(), process, seconds };
    let mut children = [start(&orders(0))?, start(&orders(1))?];
    let listening = children.each_mut().map(|child| {
        let out = child.stdout.take().expect("a pipe");
        std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).collect::<Vec<_>>())
    });
    let mut reports = Vec::new();
    for (mut child, lines) in children.into_iter().zip(listening) {
        let lines = lines.join().map_err(|_| "nobody listened")?;
        let status = child.wait()?;
        reports.push(Report::read(&lines)?);
        if !status.success() {
            return Err(format!("a process failed: {status}").into());
        }
    }
    let (_, events) = finish(drain::everything_ends(SqliteOptions::file(&file), &load::LANES))?;
    for (process, report) in reports.iter().enumerate() {
        report.show(process);
    }
    judge(&reports, &events)
}

fn judge(reports: &[Report], events: &[Event]) -> Result<(), Failed> {
    for report in reports {
        report.has_no_trouble()?;
        report.heard_news_within(NEWS_MAX)?;
    }
    nothing_is_claimed_twice(reports)?;
    nothing_is_owned_twice(events)
}

fn start(orders: &Orders) -> Result<Child, Failed> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program).env(ORDERS, serde_json::to_string(orders)?).stdout(Stdio::piped()).spawn()?)
}

/// Whoever claims gets an epoch that nobody else got.
fn nothing_is_claimed_twice(reports: &[Report]) -> Result<(), Failed> {
    let mut owners = BTreeMap::new();
    for (execution, epoch, worker) in reports.iter().flat_map(|report| &report.claims) {
        if let Some(other) = owners.insert((*execution, *epoch), worker) {
            return Err(format!("{execution} was given to {other} and to {worker} with epoch {epoch}").into());
        }
    }
    if owners.is_empty() { Err("nothing was claimed".into()) } else { Ok(()) }
}

/// An ownership begins only after the one before it has ended.
fn nothing_is_owned_twice(events: &[Event]) -> Result<(), Failed> {
    let mut owned: BTreeMap<ExecutionId, u64> = BTreeMap::new();
    for event in events {
        let (Some(id), EventBody::Lease(change)) = (event.execution_id, &event.body) else { continue };
        let begins = match change {
            LeaseChange::Acquired { lease_epoch, .. } => Some(lease_epoch.0),
            LeaseChange::Reclaimed { new_lease_epoch, .. } => Some(new_lease_epoch.0),
            LeaseChange::Expired { .. } | LeaseChange::Revoked { .. } | LeaseChange::Released { .. } => {
                owned.remove(&id);
                None
            }
            LeaseChange::Renewed { .. } | LeaseChange::ReplayInitiated { .. } => None,
        };
        if let Some(epoch) = begins
            && let Some(other) = owned.insert(id, epoch)
        {
            return Err(format!("{id} was owned with epoch {other} and with epoch {epoch}").into());
        }
    }
    Ok(())
}

fn given_twice() -> Result<(), Failed> {
    let claim = |worker: &str| {
        let execution = ExecutionId::new(1, uuid::Uuid::nil());
        let line = Line::Claimed { execution, epoch: 3, worker: worker.to_owned() };
        Report::read(&[serde_json::to_string(&line).expect("a line")])
    };
    match nothing_is_claimed_twice(&[claim("a")?, claim("b")?]) {
        Ok(()) => Err("nobody noticed".into()),
        Err(_) => Ok(()),
    }
}

fn open_only(path: &Path) -> ExitCode {
    let opened = finish(async {
        let store = SqliteStore::open(SqliteOptions::file(path)).await?;
        Engine::open(store, Settings::default()).await
    });
    match opened {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            Line::Trouble { op: "open".to_owned(), error: format!("{error:?}") }.tell();
            ExitCode::FAILURE
        }
    }
}

fn make_a_file_at_once() -> Result<(), Failed> {
    for _ in 0..5 {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("new.db");
        let open = || {
            let program = std::env::current_exe()?;
            Command::new(program).env(OPEN, &path).stdout(Stdio::piped()).spawn()
        };
        let children: Vec<Child> = (0..4).map(|_| open()).collect::<Result<_, _>>()?;
        for child in children {
            let output = child.wait_with_output()?;
            if !output.status.success() {
                return Err(format!("not opened: {}", String::from_utf8_lossy(&output.stdout)).into());
            }
        }
    }
    Ok(())
}
