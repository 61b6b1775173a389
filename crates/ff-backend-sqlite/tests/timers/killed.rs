//! A process with a thousand armed timers is killed in the middle of them; the next one finds all that are left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ff_backend_sqlite::SqliteOptions;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::ExecutionId;
use ff_core::state::PublicState;
use ff_engine::clock::{Clock, SystemClock};
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

/// From when on they come due, after the process has begun to arm them; and for how long.
const FIRST_MS: u64 = 2_000;
const SPAN_MS: u64 = 2_000;

/// The process dies after so many.
const DIES_AFTER: std::ops::Range<u64> = 100..700;

/// What the process is to do.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Orders {
    file: PathBuf,
    /// Whether it arms timers before it serves them.
    arms: bool,
}

/// Serves timers until it is killed or told to end; tells how many it has handled whenever that changes.
pub(crate) fn work(orders: &Orders) {
    finish(async {
        let engine = open(SqliteOptions::file(&orders.file)).await;
        let timers = Timers::start(Arc::clone(&engine), TimerOptions::default());
        if orders.arms {
            submit(&engine, (0..TIMERS).map(armed).collect()).await;
        }
        let mut told = None;
        loop {
            let handled = timers.health().handled;
            if told.replace(handled) != Some(handled) {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{handled}").and_then(|()| out.flush()).expect("somebody listens");
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
}

fn armed(n: u16) -> CreateExecutionArgs {
    let at = SystemClock::default().now().plus(FIRST_MS + fastrand::u64(..SPAN_MS));
    match n % 2 {
        0 => CreateExecutionArgs { delay_until: Some(at), ..submission(n) },
        _ => CreateExecutionArgs { execution_deadline_at: Some(at), ..submission(n) },
    }
}

#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub(crate) fn run() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("killed.db");
    let mut child = start(&Orders { file: file.clone(), arms: true })?;
    let dies_after = fastrand::u64(DIES_AFTER);
    let before = follow(&mut child, dies_after)?;
    child.kill()?;
    child.wait()?;
    let after = finish(serve_the_rest(SqliteOptions::file(&file)))?;
    println!("killed after {before} of {TIMERS} timers; the next process handled {after}");
    Ok(())
}

fn start(orders: &Orders) -> Result<Child, Failed> {
    let orders = serde_json::to_string(orders)?;
    let program = std::env::current_exe()?;
    Ok(Command::new(program).env(ORDERS, orders).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// Follows the child until it has handled so many.
fn follow(child: &mut Child, many: u64) -> Result<u64, Failed> {
    let out = child.stdout.take().ok_or("no pipe")?;
    for line in BufReader::new(out).lines() {
        let handled: u64 = line?.parse()?;
        if handled >= many {
            return Ok(handled);
        }
    }
    Err("the child ended by itself".into())
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
