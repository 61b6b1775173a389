//! A process with a thousand armed timers is killed in the middle of them; the next one finds all that are left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ff_backend_sqlite::SqliteOptions;
use ff_core::TimestampMs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::ExecutionId;
use ff_core::state::PublicState;
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::event::EventBody;
use ff_engine::records::Record;
use ff_engine::store::Inspect;
use ff_engine::{TimerOptions, Timers};
use libtest_mimic::Failed;

use crate::{finish, id, open, submission, submit, until};

/// Set for the process that gets killed: its orders.
pub(crate) const ORDERS: &str = "FF_TIMERS_ORDERS";

/// Half of them delays, half of them deadlines.
const TIMERS: u16 = 1_000;

/// Both processes own their clocks: no timer comes due before all are armed, however long that takes.
const START: TimestampMs = TimestampMs(1_700_000_000_000);

/// The process that gets killed does not get further than to so many of them, which are due one per millisecond; the rest is for the next.
const REACHED: u16 = 800;

/// The process dies after so many.
const DIES_AFTER: std::ops::Range<u64> = 100..700;

/// How long to wait for it.
const PATIENCE: Duration = Duration::from_secs(100);

/// What the process is to do.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Orders {
    file: PathBuf,
}

/// Arms timers and serves them until it is killed; tells how many it has handled whenever that changes.
pub(crate) fn work(orders: &Orders) {
    finish(async {
        let clock = ManualClock::at(START);
        let engine = open(SqliteOptions::file(&orders.file).clock(Arc::new(clock.clone()))).await;
        let timers = Timers::start(Arc::clone(&engine), TimerOptions::default());
        submit(&engine, (0..TIMERS).map(armed).collect()).await;
        let mut told = None;
        loop {
            if clock.now() < due_at(REACHED) {
                clock.advance(1);
            }
            let handled = timers.health().handled;
            if told.replace(handled) != Some(handled) {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{handled}").and_then(|()| out.flush()).expect("somebody listens");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

fn due_at(n: u16) -> TimestampMs {
    START.plus(1 + u64::from(n))
}

fn armed(n: u16) -> CreateExecutionArgs {
    match n % 2 {
        0 => CreateExecutionArgs { delay_until: Some(due_at(n)), ..submission(n) },
        _ => CreateExecutionArgs { execution_deadline_at: Some(due_at(n)), ..submission(n) },
    }
}

#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub(crate) fn run() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("killed.db");
    let mut child = start(&Orders { file: file.clone() })?;
    let dies_after = fastrand::u64(DIES_AFTER);
    let followed = child.stdout.take().ok_or_else(|| "no pipe".into()).and_then(|out| follow(out, dies_after));
    child.kill()?;
    child.wait()?;
    let before = followed?;
    let clock = ManualClock::at(due_at(TIMERS));
    let after = finish(serve_the_rest(SqliteOptions::file(&file).clock(Arc::new(clock))))?;
    println!("killed after {before} of {TIMERS} timers; the next process handled {after}");
    Ok(())
}

fn start(orders: &Orders) -> Result<Child, Failed> {
    let orders = serde_json::to_string(orders)?;
    let program = std::env::current_exe()?;
    Ok(Command::new(program).env(ORDERS, orders).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// Listens until the child has handled so many.
fn follow(out: ChildStdout, many: u64) -> Result<u64, Failed> {
    let (told, heard) = mpsc::channel();
    // Ends with the pipe, and so with the child.
    std::thread::spawn(move || BufReader::new(out).lines().try_for_each(|line| told.send(line)));
    let began = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(began.elapsed());
        match heard.recv_timeout(left) {
            Ok(line) => match line?.parse()? {
                handled if handled >= many => return Ok(handled),
                _ => {}
            },
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(format!("{many} timers are handled: in vain").into()),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err("the child ended by itself".into()),
        }
    }
}

async fn serve_the_rest(options: SqliteOptions) -> Result<u64, Failed> {
    let engine = open(options).await;
    let left = engine.store().records().await?.iter().filter(|record| is_armed(record)).count() as u64;
    if left == 0 {
        return Err("it was killed after everything was over".into());
    }
    let timers = Timers::start(Arc::clone(&engine), TimerOptions::default());
    until("the rest is over", || timers.health().handled >= left).await?;
    let handled = timers.health().handled;
    timers.stop().await;
    let records = engine.store().records().await?;
    let mut ends: BTreeMap<ExecutionId, usize> = BTreeMap::new();
    for event in engine.store().event_log().await? {
        if let (Some(id), EventBody::Completion { .. }) = (event.execution_id, &event.body) {
            *ends.entry(id).or_default() += 1;
        }
    }
    for n in 0..TIMERS {
        let state = records.iter().find_map(|record| match record {
            Record::Execution(it) if it.id == id(n) => Some(it.public_state()),
            _ => None,
        });
        let expected = if n % 2 == 0 { (PublicState::Waiting, 0) } else { (PublicState::Expired, 1) };
        let found = (state.ok_or("an execution is lost")?, ends.get(&id(n)).copied().unwrap_or(0));
        if found != expected {
            return Err(format!("{}: {found:?}, not {expected:?}", id(n)).into());
        }
    }
    if handled == left {
        Ok(handled)
    } else {
        Err(format!("{handled} of {left} were handled: some of them twice").into())
    }
}

fn is_armed(record: &Record) -> bool {
    matches!(record, Record::Execution(it) if it.public_state() == PublicState::Delayed
        || (it.deadline_at.is_some() && !it.is_terminal()))
}
