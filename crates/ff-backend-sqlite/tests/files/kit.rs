//! What the cases share.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ff_backend_sqlite::{SqliteBackend, SqliteOptions, SqliteStore};
use ff_core::backend::EngineBackend;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::ids::{ExecutionId, LaneId, Namespace};
use ff_core::{Blob, EngineError, Result};
use ff_engine::{Engine, Settings};
use libtest_mimic::Failed;

/// Set for a process that opens a file and says what came of it.
pub(crate) const OPEN: &str = "FF_OPEN_FILE";

/// Set for a process that locks a file until its input ends.
const LOCK: &str = "FF_LOCK_FILE";

/// What a case answers.
pub(crate) type Outcome = std::result::Result<(), Failed>;

/// The work of a child, when this is one.
pub(crate) fn run_as_child() -> Option<ExitCode> {
    if let Some(path) = std::env::var_os(OPEN) {
        let said = match finish(open(Path::new(&path))) {
            Ok(_) => "opened".to_owned(),
            Err(error) => error.to_string(),
        };
        std::io::stdout().write_all(said.as_bytes()).expect("somebody listens");
        return Some(ExitCode::SUCCESS);
    }
    let path = std::env::var_os(LOCK)?;
    let db = rusqlite::Connection::open(Path::new(&path)).expect("the file opens");
    db.execute_batch("BEGIN IMMEDIATE").expect("the file is free");
    std::io::stdout().write_all(b"locked\n").expect("somebody listens");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("an end of input");
    Some(ExitCode::SUCCESS)
}

/// Another process that keeps a file locked until it is told to end.
pub(crate) fn lock(path: &Path) -> std::result::Result<Child, Failed> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program).env(LOCK, path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut said)?;
    if said == "locked\n" { Ok(child) } else { Err("the child does not get the lock".into()) }
}

/// Runs a future to its end.
pub(crate) fn finish<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
}

/// Opens a file the way a program would.
pub(crate) async fn open(path: &Path) -> Result<SqliteBackend> {
    open_with(SqliteOptions::file(path)).await
}

/// Opens a store and its engine; impatient with locks.
pub(crate) async fn open_with(options: SqliteOptions) -> Result<SqliteBackend> {
    let store = SqliteStore::open(options.busy_timeout(Duration::from_millis(300))).await?;
    Engine::open(store, Settings::default()).await
}

/// Submits an execution.
pub(crate) async fn create(backend: &dyn EngineBackend, payload: Blob) -> Result<ExecutionId> {
    let (namespace, lane) = (Namespace::new("files")?, LaneId::new("files")?);
    let args =
        CreateExecutionArgs { input_payload: payload, ..CreateExecutionArgs::new(None, namespace, lane, "file") };
    match backend.create_execution(args).await? {
        CreateExecutionResult::Created { execution_id, .. } => Ok(execution_id),
        other @ CreateExecutionResult::Duplicate { .. } => Err(EngineError::invalid(format_args!("{other:?}"))),
    }
}

/// A new database with some executions in it, closed.
pub(crate) fn filled(path: &Path, executions: usize) -> Result<Vec<ExecutionId>> {
    finish(async {
        let backend = open(path).await?;
        let mut ids = Vec::new();
        for nth in 0..executions {
            ids.push(create(&backend, payload(nth)).await?);
        }
        Ok(ids)
    })
}

/// The input of the nth execution.
pub(crate) fn payload(nth: usize) -> Blob {
    Blob::from(format!("{nth:08}").repeat(200).as_bytes())
}

/// A directory for one case, and a file in it.
pub(crate) fn place() -> std::result::Result<(tempfile::TempDir, PathBuf), Failed> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("flow.db");
    Ok((directory, path))
}

/// Fails unless the text is one line that holds every part.
pub(crate) fn says(text: &str, parts: &[&str]) -> Outcome {
    let missing: Vec<_> = parts.iter().filter(|part| !text.contains(**part)).collect();
    match (text.lines().count(), missing.is_empty()) {
        (1, true) => Ok(()),
        (1, false) => Err(format!("{text:?} does not say {missing:?}").into()),
        (lines, _) => Err(format!("{text:?} has {lines} lines").into()),
    }
}

/// Opens a file that cannot be used, and looks at the explanation.
pub(crate) fn is_refused(path: &Path, parts: &[&str]) -> Outcome {
    match finish(open(path)) {
        Ok(_) => Err(format!("{} was opened", path.display()).into()),
        Err(error) => says(&error.to_string(), parts),
    }
}
