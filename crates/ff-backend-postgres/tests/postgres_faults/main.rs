//! A server that is killed, sessions that it ends, processes that die: whatever was acknowledged is there, whatever was not is there as a
//! whole or not at all, nobody who waits or follows misses anything, and callers are told nothing but to try again.
//!
//! `FF_CRASH_ROUNDS` says how often, `FF_CRASH_SEED` repeats the choices of a run.

mod ground;
#[path = "../site/mod.rs"]
mod site;

use std::process::ExitCode;
use std::time::Duration;

use ff_test_load::faults::rounds::{self, Keeps, Load};
use ff_test_load::faults::{Ground as _, obey, takeover, waits};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::ground::Ground;
use crate::site::Site;

/// How often sessions are ended in a round.
const ENDINGS: usize = 10;

fn main() -> ExitCode {
    if obey::<Site>() {
        return ExitCode::FAILURE;
    }
    let trials = vec![
        Trial::test("nothing_is_lost_when_the_server_is_killed", || survives("ServerKilled", kill_server)),
        Trial::test("nothing_is_lost_when_sessions_are_ended", || survives("SessionsEnded", end_sessions)),
        Trial::test("nothing_is_lost_when_a_process_is_killed", || {
            survives("ProcessKilled", |_, load| load.kill_one())
        }),
        Trial::test("a_lost_acknowledgement_would_be_noticed", || rounds::a_loss_is_noticed(Ground::start()?)),
        Trial::test("the_work_of_a_dead_process_is_taken_over_in_time", take_over),
        Trial::test("who_waits_gets_it_although_the_server_was_killed", || {
            waits::run("ServerKilled", Ground::start()?, |ground| Ok(ground.server.restart()?))
        }),
        Trial::test("who_waits_gets_it_although_sessions_were_ended", || {
            waits::run("SessionsEnded", Ground::start()?, |ground| ground.end_sessions(None))
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn survives(name: &str, strike: impl Fn(&mut Ground, &mut Load<'_>) -> Result<(), Failed>) -> Result<(), Failed> {
    rounds::run(name, Keeps::Everything, Ground::start()?, strike)
}

fn kill_server(ground: &mut Ground, load: &mut Load<'_>) -> Result<(), Failed> {
    ground.server.kill();
    std::thread::sleep(Duration::from_millis(load.rng.u64(..500)));
    Ok(ground.server.restart()?)
}

fn end_sessions(ground: &mut Ground, load: &mut Load<'_>) -> Result<(), Failed> {
    for _ in 0..ENDINGS {
        ground.end_sessions(Some(load.rng.usize(1..6)))?;
        let more = load.rng.usize(1..10);
        load.follow(more)?;
    }
    Ok(())
}

fn take_over() -> Result<(), Failed> {
    let ground = Ground::start()?;
    takeover::run(ground.site())
}
