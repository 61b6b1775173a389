//! Two processes on one file under mixed load: no error but documented ones, nothing is owned twice, everything ends.
//!
//! `FF_LOAD_SECONDS` says for how long.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ff_backend_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use ff_core::ids::ExecutionId;
use ff_engine::store::Inspect;
use ff_engine::{Engine, Settings};
use ff_test_load::mixed::report::{Line, Report};
use ff_test_load::mixed::{self, Shift, work_together};
use ff_test_load::{drain, feed, owners};
use libtest_mimic::{Arguments, Failed, Trial};

/// That share a file.
const PROCESSES: usize = 2;

/// Set for a process of the test: its orders.
const ORDERS: &str = "FF_LOAD_ORDERS";

/// Set for a process that only opens a file.
const OPEN: &str = "FF_OPEN_NEW_FILE";

/// News must not take longer than this to reach the other process, however busy the machine is.
const NEWS_MAX: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(ORDERS) {
        work(&serde_json::from_str(&orders).expect("orders"));
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

/// What a process does, and where.
#[derive(serde::Serialize, serde::Deserialize)]
struct Orders {
    file: PathBuf,
    shift: Shift,
}

fn finish<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
}

fn share_a_file() -> Result<(), Failed> {
    let seconds = std::env::var("FF_LOAD_SECONDS").map_or(5, |text| text.parse().expect("a number"));
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("shared.db");
    let mut commands = Vec::new();
    for process in 0..PROCESSES {
        let shift = Shift { process, processes: PROCESSES, seconds };
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ORDERS, serde_json::to_string(&Orders { file: file.clone(), shift })?);
        commands.push(command);
    }
    let reports = work_together(commands)?;
    for (process, report) in reports.iter().enumerate() {
        report.show(process);
    }
    finish(judge(&file, &reports))
}

async fn judge(file: &Path, reports: &[Report]) -> Result<(), Failed> {
    let clock = drain::later();
    let options = SqliteOptions::file(file).clock(Arc::new(clock.clone())).synchronous(Synchronous::Normal);
    let backend = Engine::open(SqliteStore::open(options).await?, Settings::default()).await?;
    let events = backend.store().event_log().await?;
    for report in reports {
        report.has_no_trouble()?;
        report.heard_news_within(NEWS_MAX)?;
        feed::saw_everything_once(&report.seen, &events)?;
    }
    owners::nothing_is_claimed_twice(reports.iter().flat_map(|report| &report.claims))?;
    let (_, events) = drain::everything_ends(&backend, &clock, &mixed::lanes(PROCESSES)).await?;
    owners::nothing_is_owned_twice(&events)?;
    let check = backend.store().check().await?;
    if check.is_sound() { Ok(()) } else { Err(format!("the file is damaged: {:#?}", check.problems).into()) }
}

/// Works as ordered.
fn work(orders: &Orders) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async {
        // Few, so that each process settles what the other has created.
        let options = SqliteOptions::file(&orders.file).young_max(100);
        let store = SqliteStore::open(options).await.expect("the file opens");
        let backend = Engine::open(store, Settings::default()).await.expect("the engine opens");
        mixed::work(Arc::new(backend), orders.shift).await;
    });
}

fn given_twice() -> Result<(), Failed> {
    let claim = |worker: &str| (ExecutionId::new(1, uuid::Uuid::nil()), 3, worker.to_owned());
    match owners::nothing_is_claimed_twice(&[claim("a"), claim("b")]) {
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
