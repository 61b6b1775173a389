//! A process under load is killed at random moments: whatever it acknowledged is there when the file is opened again, and whatever it
//! did not is there as a whole or not at all.
//!
//! `FF_CRASH_ROUNDS` says how often, `FF_CRASH_SEED` repeats the choices of a run.

mod drain;
mod journal;
mod load;
mod model;
mod verify;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ff_backend_sqlite::SqliteStore;
use ff_engine::{Engine, Settings};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::journal::Line;
use crate::load::Orders;
use crate::model::Model;
use crate::verify::Found;

/// Set for the process that gets killed: its orders.
const ORDERS: &str = "FF_CRASH_ORDERS";

/// After so many rounds the next file begins, so that verifying does not take ever longer.
const ROUNDS_PER_FILE: usize = 10;

/// A child that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(ORDERS) {
        load::run(&serde_json::from_str(&orders).expect("orders"));
        return ExitCode::FAILURE;
    }
    let trials = vec![
        Trial::test("nothing_acknowledged_is_lost_when_the_process_is_killed", rounds),
        Trial::test("a_lost_acknowledgement_would_be_noticed", a_loss),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[allow(clippy::print_stdout, reason = "a failing run is repeated with its seed")]
fn rounds() -> Result<(), Failed> {
    let seed = number("FF_CRASH_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let rounds = usize::try_from(number("FF_CRASH_ROUNDS").unwrap_or(10))?;
    println!("FF_CRASH_SEED={seed} FF_CRASH_ROUNDS={rounds}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut killed, mut acknowledged, mut open, mut happened) = (0, 0, 0, 0);
    for file in 0..rounds.div_ceil(ROUNDS_PER_FILE) {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("crash.db");
        let mut model = Model::default();
        let left = (rounds - killed).min(ROUNDS_PER_FILE);
        let orders = |round, seed| Orders {
            file: path.clone(),
            seed,
            round,
            fast_paths: file % 3 != 2,
            // Even then the operating system has every commit before its answer, and that is all a killed process needs.
            full: file % 5 != 4,
            forgets: false,
        };
        for round in 0..left {
            let unanswered = one_round(&orders(round, rng.u64(..)), &mut rng, &mut model)
                .map_err(|why| format!("FF_CRASH_SEED={seed}: file {file}, round {round}: {why}"))?;
            open += unanswered.0;
            happened += unanswered.1;
            killed += 1;
        }
        acknowledged += model.acknowledged;
        drain::everything_ends(&orders(left, 0), &model).map_err(|why| format!("FF_CRASH_SEED={seed}: {why}"))?;
    }
    println!("killed {killed} times: {acknowledged} acknowledged, {open} without an answer, {happened} of them there");
    if rounds >= ROUNDS_PER_FILE && acknowledged < rounds {
        return Err("hardly anything was acknowledged: no load, no test".into());
    }
    Ok(())
}

fn a_loss() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("crash.db");
    let mut orders = Orders { file, seed: 7, round: 0, fast_paths: true, full: true, forgets: true };
    let mut model = Model::default();
    for round in 0..ROUNDS_PER_FILE {
        orders.round = round;
        match one_round(&orders, &mut fastrand::Rng::with_seed(round as u64), &mut model) {
            Ok(_) => {}
            Err(why) if why.contains("is Active, not one of [Completed]") => return Ok(()),
            Err(why) => return Err(format!("something else was noticed: {why}").into()),
        }
    }
    Err("nobody noticed that completions are lost".into())
}

/// Starts, kills, opens again, compares; says how many calls had no answer, and how many of them happened.
fn one_round(orders: &Orders, rng: &mut fastrand::Rng, model: &mut Model) -> Result<(usize, usize), String> {
    let mut child = start(orders)?;
    let lines = listen(&mut child);
    let outcome = wait_for_the_moment(&lines, rng, model);
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
fn wait_for_the_moment(lines: &Receiver<Line>, rng: &mut fastrand::Rng, model: &mut Model) -> Result<(), String> {
    let is_early = rng.u8(..6) == 0;
    let answers = if is_early { usize::MAX } else { model.acknowledged + rng.usize(1..=150) };
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let store = SqliteStore::open(orders.options()).await.map_err(|error| format!("opening again: {error}"))?;
        let backend = Engine::open(store, Settings::default()).await.map_err(|error| error.to_string())?;
        let found = Found::look(&backend).await?;
        found.is_sound().await?;
        found.agrees_with(model).await
    })
}
