//! A system-call trace of a small run shows that every answer follows the flush of what it speaks of.
//!
//! Needs `strace`; `make trace` runs it and shows what it saw.

mod trace;

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use ff_backend_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use ff_core::backend::EngineBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::capability::CapabilitySet;
use ff_core::ids::{ExecutionId, LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::{Blob, Result};
use ff_engine::{Engine, Settings};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::trace::{Findings, judge, parse};

/// Set for the process that is traced: its file.
const FILE: &str = "FF_TRACED_FILE";

/// Set for the process that is traced: how it commits.
const SYNCHRONOUS: &str = "FF_TRACED_SYNCHRONOUS";

/// What a case answers.
type Outcome = std::result::Result<(), Failed>;

/// Callers at once.
const CALLERS: usize = 4;

/// Executions that each of them creates, claims and completes.
const EXECUTIONS: usize = 8;

fn main() -> ExitCode {
    if let Some(file) = std::env::var_os(FILE) {
        let full = std::env::var(SYNCHRONOUS).is_ok_and(|word| word == "FULL");
        run_traced(Path::new(&file), if full { Synchronous::Full } else { Synchronous::Normal });
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        Trial::test("every_answer_follows_the_flush_of_its_group", every_answer_follows_its_flush),
        Trial::test("answers_without_a_flush_are_noticed", answers_without_a_flush_are_noticed),
        Trial::test("nobody_is_answered_after_a_flush_that_failed", nobody_is_answered_after_a_failed_flush),
        Trial::test("an_answer_in_the_middle_of_its_flush_is_early", || examples(MIDDLE, &["m1"])),
        Trial::test("an_answer_after_a_failed_flush_is_early", || examples(FAILED, &["m1"])),
        Trial::test("an_answer_after_the_flush_of_an_earlier_write_is_early", || examples(EARLIER, &["m1"])),
        Trial::test("an_answer_after_its_flush_is_in_order", || examples(IN_ORDER, &[])),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run_traced(file: &Path, synchronous: Synchronous) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let options = SqliteOptions::file(file).synchronous(synchronous);
        let store = SqliteStore::open(options).await.expect("the file opens");
        let backend = Arc::new(Engine::open(store, Settings::default()).await.expect("the engine opens"));
        let callers: Vec<_> = (0..CALLERS).map(|number| tokio::spawn(work(backend.clone(), number))).collect();
        for caller in callers {
            caller.await.expect("a caller works to its end");
        }
    });
}

/// Works until everything is done, or somebody is refused.
async fn work(backend: Arc<dyn EngineBackend>, number: usize) {
    if let Err(error) = call(backend, number).await {
        let line = format!("refused {error}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).expect("somebody listens");
    }
}

/// Every operation leaves a mark in what it stores, and its answer names that mark.
async fn call(backend: Arc<dyn EngineBackend>, number: usize) -> Result<()> {
    let lane = LaneId::new(format!("lane-{number}"))?;
    for nth in 0..EXECUTIONS {
        let mark = |operation: &str| format!("mark-{operation}-{number}-{nth}.");
        let created = mark("create");
        let args = CreateExecutionArgs {
            input_payload: twice(&created),
            ..CreateExecutionArgs::new(None, Namespace::new("trace")?, lane.clone(), "trace")
        };
        let answered = backend.create_execution(args).await?;
        answer(&created);
        let CreateExecutionResult::Created { execution_id, .. } = answered else { panic!("{answered:?}") };
        let claimed = mark("claim");
        let policy = ClaimPolicy::new(WorkerId::new("trace")?, WorkerInstanceId::new(&claimed)?, 60_000);
        let handle = backend.claim(&lane, &CapabilitySet::default(), policy).await?.expect("work");
        answer(&claimed);
        let completed = mark("complete");
        let looking = tokio::spawn(look(backend.clone(), execution_id));
        backend.complete(&handle, Some(twice(&completed))).await?;
        answer(&completed);
        looking.await.expect("a reader does not panic")?;
    }
    Ok(())
}

/// A mark that is found in what one system call writes, even if the bytes are cut between two of them.
fn twice(mark: &str) -> Blob {
    Blob::from(&*format!("{mark}{}{mark}", "-".repeat(mark.len())))
}

/// A reader is told what the disk has, too.
async fn look(backend: Arc<dyn EngineBackend>, id: ExecutionId) -> Result<()> {
    loop {
        if let Some(result) = backend.get_execution_result(id).await? {
            let text = String::from_utf8_lossy(&result);
            answer(text.split_inclusive('.').next().unwrap_or_default());
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// One system call per answer.
fn answer(mark: &str) {
    let line = format!("answer {mark}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).expect("somebody listens");
}

/// Runs this program again under the eyes of `strace`, which may spoil some calls; says also what callers were refused with.
fn traced(synchronous: Synchronous, spoiled: Option<&str>) -> std::result::Result<(Findings, Vec<String>), Failed> {
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("calls.txt");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "70000", "-e", "trace=write,pwrite64,pwritev,fsync,fdatasync", "-o"]).arg(&log);
    if let Some(spoiled) = spoiled {
        strace.args(["-e", &format!("inject={spoiled}")]);
    }
    let output = strace
        .arg(std::env::current_exe()?)
        .env(FILE, directory.path().join("trace.db"))
        .env(SYNCHRONOUS, synchronous.as_str())
        .output()
        .map_err(|error| format!("strace does not run: {error}; install it (Debian: apt-get install strace)"))?;
    if !output.status.success() {
        return Err(format!("the traced run failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let refused = said.lines().filter_map(|line| line.strip_prefix("refused ")).map(str::to_owned).collect();
    Ok((judge(&parse(&String::from_utf8_lossy(&std::fs::read(&log)?))), refused))
}

#[allow(clippy::print_stdout, reason = "the trace is for people to look at")]
fn show(name: &str, findings: &Findings) {
    let Findings { answers, groups, flushes, early, .. } = findings;
    println!(
        "synchronous={name}: {answers} answers, {groups} groups, {flushes} flushes, {} early answers",
        early.len()
    );
    for line in &findings.excerpt {
        println!("  {line}");
    }
}

/// What both runs have in common: as many answers as calls, each about something that was written.
fn is_complete(findings: &Findings) -> Outcome {
    if findings.answers == CALLERS * EXECUTIONS * 4 && findings.unwritten.is_empty() {
        return Ok(());
    }
    Err(format!("{} answers; of these the log never heard: {:?}", findings.answers, findings.unwritten).into())
}

fn every_answer_follows_its_flush() -> Outcome {
    let (findings, _) = traced(Synchronous::Full, None)?;
    show("FULL", &findings);
    is_complete(&findings)?;
    if !findings.early.is_empty() {
        return Err(format!("answered before the flush: {:?}", findings.early).into());
    }
    if findings.groups >= findings.answers {
        return Err("no flush served several callers".into());
    }
    Ok(())
}

fn answers_without_a_flush_are_noticed() -> Outcome {
    let (findings, _) = traced(Synchronous::Normal, None)?;
    show("NORMAL", &findings);
    is_complete(&findings)?;
    if findings.early.is_empty() { Err("a run without flushes looks as good as one with them".into()) } else { Ok(()) }
}

/// From the tenth on, no flush succeeds. What was answered before stays answered; nobody is answered any more.
fn nobody_is_answered_after_a_failed_flush() -> Outcome {
    let (findings, refused) = traced(Synchronous::Full, Some("fdatasync:error=EIO:when=10+"))?;
    show("FULL, failing", &findings);
    let all = CALLERS * EXECUTIONS * 4;
    if findings.answers == 0 || findings.answers >= all || !findings.early.is_empty() || refused.len() != CALLERS {
        return Err(format!("{} answers, early: {:?}, refused: {refused:?}", findings.answers, findings.early).into());
    }
    match refused.iter().find(|text| !text.contains("the disk did not take a commit")) {
        None => Ok(()),
        Some(other) => Err(format!("refused with {other:?}").into()),
    }
}

const MIDDLE: &str = r#"
1 pwrite64(9</t/a.db-wal>, "..m1..", 4096, 32) = 4096
1 fdatasync(9</t/a.db-wal> <unfinished ...>
2 write(1<pipe:[7]>, "answer m1\n", 10) = 10
1 <... fdatasync resumed>) = 0
"#;

const FAILED: &str = r#"
1 pwrite64(9</t/a.db-wal>, "..m1..", 4096, 32) = 4096
1 fdatasync(9</t/a.db-wal>) = -1 EIO (Input/output error)
2 write(1<pipe:[7]>, "answer m1\n", 10) = 10
"#;

const EARLIER: &str = r#"
1 pwrite64(9</t/a.db-wal>, "..m0..", 4096, 32) = 4096
1 fdatasync(9</t/a.db-wal>) = 0
1 pwrite64(9</t/a.db-wal>, "..m1..", 4096, 4128) = 4096
2 write(1<pipe:[7]>, "answer m1\n", 10) = 10
"#;

const IN_ORDER: &str = r#"
1 pwrite64(9</t/a.db-wal>, "..m1..", 4096, 32 <unfinished ...>
3 write(1<pipe:[7]>, "something else\n", 15) = 15
1 <... pwrite64 resumed>) = 4096
1 fdatasync(9</t/a.db-wal> <unfinished ...>
1 <... fdatasync resumed>) = 0
1 pwrite64(9</t/a.db-wal>, "..m2..", 4096, 4128) = 4096
2 write(1<pipe:[7]>, "answer m1\n", 10) = 10
"#;

fn examples(text: &str, early: &[&str]) -> Outcome {
    let findings = judge(&parse(text));
    if findings.answers == 1 && findings.early == early && findings.unwritten.is_empty() {
        return Ok(());
    }
    Err(format!("{findings:?}").into())
}
