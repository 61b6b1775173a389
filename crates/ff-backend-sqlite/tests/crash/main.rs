//! A process under load is killed at random moments: whatever it acknowledged is there when the file is opened again, and whatever it
//! did not is there as a whole or not at all.
//!
//! `FF_CRASH_ROUNDS` says how often, `FF_CRASH_SEED` repeats the choices of a run.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ff_backend_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::{Engine, Settings};
use ff_test_load::drain;
use ff_test_load::journal::caller::{self, Manner};
use ff_test_load::journal::line::Line;
use ff_test_load::journal::model::Model;
use ff_test_load::journal::verify::Found;
use libtest_mimic::{Arguments, Failed, Trial};

/// Set for the process that gets killed: its orders.
const ORDERS: &str = "FF_CRASH_ORDERS";

/// After so many rounds the next file begins, so that verifying does not take ever longer.
const ROUNDS_PER_FILE: usize = 10;

/// A child that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(ORDERS) {
        work(&serde_json::from_str(&orders).expect("orders"));
        return ExitCode::FAILURE;
    }
    let trials = vec![
        Trial::test("nothing_acknowledged_is_lost_when_the_process_is_killed", rounds),
        Trial::test("a_lost_acknowledgement_would_be_noticed", a_loss),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// How the child is to run.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Orders {
    file: PathBuf,
    fast_paths: bool,
    full: bool,
    /// How many executions stay young.
    young_max: usize,
    manner: Manner,
}

impl Orders {
    fn options(&self) -> SqliteOptions {
        let synchronous = if self.full { Synchronous::Full } else { Synchronous::Normal };
        let options = SqliteOptions::file(&self.file).fast_paths(self.fast_paths);
        options.synchronous(synchronous).young_max(self.young_max)
    }
}

/// Works until it is killed.
fn work(orders: &Orders) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let store = SqliteStore::open(orders.options()).await.expect("the file opens");
        let backend = Engine::open(store, Settings::default()).await.expect("the engine opens");
        caller::work(Arc::new(backend), &orders.manner).await;
    });
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// What comes of killing.
#[derive(Default)]
struct Tally {
    killed: usize,
    acknowledged: usize,
    open: usize,
    happened: usize,
}

/// One file and how its processes are treated.
struct Plan {
    orders: Orders,
    rounds: usize,
    /// After how many answers they die.
    answers: RangeInclusive<usize>,
}

/// One round in ten with so much to write that pages move from the log into the file, the others in files of ten rounds.
fn plans(rounds: usize, directory: &Path) -> Vec<Plan> {
    let heavy = rounds.div_ceil(10);
    let mut plans = Vec::new();
    for (number, left) in (0..rounds - heavy).step_by(ROUNDS_PER_FILE).enumerate() {
        let orders = Orders {
            file: directory.join(format!("crash-{number}.db")),
            fast_paths: number % 3 != 2,
            // Even without, the operating system has every commit before its answer, and that is all a killed process needs.
            full: number % 4 != 3,
            young_max: [1_000, 4, 40][number % 3],
            manner: Manner::default(),
        };
        plans.push(Plan { orders, rounds: ROUNDS_PER_FILE.min(rounds - heavy - left), answers: 1..=150 });
    }
    let file = directory.join("heavy.db");
    // With so much in it the log soon has to be moved into the file.
    let manner = Manner { padding: 60_000, ..Manner::default() };
    let orders = Orders { file, fast_paths: true, full: true, young_max: 100, manner };
    plans.push(Plan { orders, rounds: heavy, answers: 300..=1_500 });
    plans
}

#[allow(clippy::print_stdout, reason = "a failing run is repeated with its seed")]
fn rounds() -> Result<(), Failed> {
    let seed = number("FF_CRASH_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let rounds = usize::try_from(number("FF_CRASH_ROUNDS").unwrap_or(10))?;
    println!("FF_CRASH_SEED={seed} FF_CRASH_ROUNDS={rounds}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut tally = Tally::default();
    let directory = tempfile::tempdir()?;
    for plan in plans(rounds, directory.path()) {
        let file = plan.orders.file.clone();
        kill_again_and_again(&plan, &mut rng, &mut tally)
            .map_err(|why| format!("FF_CRASH_SEED={seed}: {}, kill {}: {why}", file.display(), tally.killed))?;
    }
    let Tally { killed, acknowledged, open, happened } = tally;
    println!("killed {killed} times: {acknowledged} acknowledged, {open} without an answer, {happened} of them there");
    if killed != rounds || acknowledged < rounds {
        return Err("hardly anything was acknowledged: no load, no test".into());
    }
    Ok(())
}

/// All rounds of one file, and its end.
fn kill_again_and_again(plan: &Plan, rng: &mut fastrand::Rng, tally: &mut Tally) -> Result<(), String> {
    let mut model = Model::new(plan.orders.manner.padding);
    for round in 0..plan.rounds {
        let manner = Manner { seed: rng.u64(..), round, ..plan.orders.manner.clone() };
        let orders = Orders { manner, ..plan.orders.clone() };
        let (open, happened) = one_round(&orders, &plan.answers, rng, &mut model)?;
        tally.killed += 1;
        tally.open += open;
        tally.happened += happened;
    }
    tally.acknowledged += model.acknowledged;
    finish(async {
        let clock = drain::later();
        let options = plan.orders.options().clock(Arc::new(clock.clone())).synchronous(Synchronous::Normal);
        let store = SqliteStore::open(options).await.map_err(told)?;
        let backend = Engine::open(store, Settings::default()).await.map_err(told)?;
        let (records, _) = drain::everything_ends(&backend, &clock, &caller::LANES.map(str::to_owned)).await?;
        is_undamaged(backend.store()).await?;
        let left: BTreeSet<Key> = records.iter().map(Record::key).collect();
        let lost: Vec<_> = model.executions.keys().filter(|id| !left.contains(&Key::execution(**id))).collect();
        if lost.is_empty() { Ok(()) } else { Err(format!("lost at the end: {lost:?}")) }
    })
}

fn a_loss() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("crash.db");
    let manner = Manner { seed: 7, forgets: true, ..Manner::default() };
    let mut orders = Orders { file, fast_paths: true, full: true, young_max: 100, manner };
    let mut model = Model::default();
    for round in 0..ROUNDS_PER_FILE {
        orders.manner.round = round;
        match one_round(&orders, &(50..=150), &mut fastrand::Rng::with_seed(round as u64), &mut model) {
            Ok(_) => {}
            Err(why) if why.contains("is Active, not one of [Completed]") => return Ok(()),
            Err(why) => return Err(format!("something else was noticed: {why}").into()),
        }
    }
    Err("nobody noticed that completions are lost".into())
}

/// Starts, kills, opens again, compares; says how many calls had no answer, and how many of them happened.
fn one_round(
    orders: &Orders,
    answers: &RangeInclusive<usize>,
    rng: &mut fastrand::Rng,
    model: &mut Model,
) -> Result<(usize, usize), String> {
    let mut child = start(orders)?;
    let lines = listen(&mut child);
    let outcome = wait_for_the_moment(&lines, answers, rng, model);
    child.kill().and_then(|()| child.wait()).map_err(|error| format!("the child cannot be killed: {error}"))?;
    outcome?;
    // Whatever it said before it died is still to be heard.
    while let Ok(line) = lines.recv() {
        model.follow(line)?;
    }
    let open = model.pending.len();
    Ok((open, verify(orders, model)?))
}

fn start(orders: &Orders) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Command::new(program)
        .env(ORDERS, serde_json::to_string(orders).map_err(|error| error.to_string())?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("the child does not start: {error}"))
}

/// Hears the child; a line that was cut off was not said.
fn listen(child: &mut Child) -> Receiver<Line> {
    let out = child.stdout.take().expect("a pipe");
    let (told, heard) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let Ok(line) = line else { return };
            let Ok(line) = serde_json::from_str(&line) else { return };
            if told.send(line).is_err() {
                return;
            }
        }
    });
    heard
}

/// Follows the child until the moment at which it dies: after so many answers and a little more, or early, whatever it is doing.
fn wait_for_the_moment(
    lines: &Receiver<Line>,
    answers: &RangeInclusive<usize>,
    rng: &mut fastrand::Rng,
    model: &mut Model,
) -> Result<(), String> {
    let is_early = rng.u8(..6) == 0;
    let answers = if is_early { usize::MAX } else { model.acknowledged + rng.usize(answers.clone()) };
    let early = Instant::now() + Duration::from_millis(if is_early { rng.u64(..120) } else { 60_000 });
    while model.acknowledged < answers {
        match lines.recv_timeout(early.saturating_duration_since(Instant::now()).min(PATIENCE)) {
            Ok(line) => model.follow(line)?,
            Err(RecvTimeoutError::Timeout) if is_early => return Ok(()),
            Err(RecvTimeoutError::Timeout) => return Err("the child hangs".to_owned()),
            Err(RecvTimeoutError::Disconnected) => return Err("the child ended by itself".to_owned()),
        }
    }
    let until = Instant::now() + Duration::from_micros(rng.u64(..8_000));
    while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        model.follow(line)?;
    }
    Ok(())
}

fn verify(orders: &Orders, model: &mut Model) -> Result<usize, String> {
    finish(async {
        let store = SqliteStore::open(orders.options()).await.map_err(|error| format!("opening again: {error}"))?;
        let backend = Engine::open(store, Settings::default()).await.map_err(told)?;
        let found = Found::look(&backend).await?;
        found.is_sound()?;
        is_undamaged(backend.store()).await?;
        found.agrees_with(model).await
    })
}

async fn is_undamaged(store: &SqliteStore) -> Result<(), String> {
    let report = store.check().await.map_err(told)?;
    if report.is_sound() { Ok(()) } else { Err(format!("the file is damaged: {:#?}", report.problems)) }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn finish<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
}
