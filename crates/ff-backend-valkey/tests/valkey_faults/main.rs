//! A server that is killed, connections that are cut, processes that die, a primary of a cluster that its replica takes the place of: whatever
//! was acknowledged is there, whatever was not is there as a whole or not at all, nobody who waits or follows misses anything, and callers are
//! told nothing but to try again. Where nobody waits for replicas, the last moments before a primary's death may be lost, and nothing else.
//!
//! `FF_CRASH_ROUNDS` says how often, `FF_CRASH_SEED` repeats the choices of a run.

mod functions;
mod ground;
#[path = "../site/mod.rs"]
mod site;

use std::process::ExitCode;
use std::time::Duration;

use ff_test_load::faults::rounds::{self, Keeps, Load};
use ff_test_load::faults::{Ground, obey, takeover, waits};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::ground::{Alone, Together};
use crate::site::Site;

/// How often connections are cut in a round.
const CUTS: usize = 10;

/// Slots that move in a round.
const SLOTS_MOVED: usize = 3;

fn main() -> ExitCode {
    if obey::<Site>() {
        return ExitCode::FAILURE;
    }
    let mut trials = trials_of_a_server();
    trials.extend(trials_of_a_cluster());
    trials.extend(trials_of_functions());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trials_of_a_server() -> Vec<Trial> {
    let survives = |name, strike: fn(&mut Alone, &mut Load<'_>) -> Result<(), Failed>| {
        move || rounds::run(name, Keeps::Everything, Alone::start()?, strike)
    };
    vec![
        Trial::test("nothing_is_lost_when_the_server_is_killed", survives("ServerKilled", kill_server)),
        Trial::test("nothing_is_lost_when_connections_are_cut", survives("ConnectionsCut", cut_connections)),
        Trial::test("nothing_is_lost_when_a_process_is_killed", survives("ProcessKilled", |_, load| load.kill_one())),
        Trial::test("a_lost_acknowledgement_would_be_noticed", || rounds::a_loss_is_noticed(Alone::start()?)),
        Trial::test("the_work_of_a_dead_process_is_taken_over_in_time", || take_over(&Alone::start()?)),
        Trial::test("who_waits_gets_it_although_the_server_was_killed", || {
            waits::run("ServerKilled", Alone::start()?, |ground| Ok(ground.0.restart()?))
        }),
        Trial::test("who_waits_gets_it_although_connections_were_cut", || {
            waits::run("ConnectionsCut", Alone::start()?, |ground| {
                Ok(["normal", "pubsub"].iter().try_for_each(|of_type| ground.cut(of_type))?)
            })
        }),
    ]
}

fn trials_of_a_cluster() -> Vec<Trial> {
    vec![
        Trial::test("nothing_that_a_replica_has_is_lost_when_a_primary_is_killed", || {
            rounds::run("PrimaryKilled", Keeps::Acknowledged, Together::start(1)?, replace_primary)
        }),
        Trial::test("what_is_there_is_sound_when_a_primary_is_killed", || {
            rounds::run("PrimaryKilled, no replica awaited", Keeps::Soundness, Together::start(0)?, outlast_primary)
        }),
        Trial::test("nothing_is_lost_when_slots_move_to_other_primaries", || {
            rounds::run("SlotsMoved", Keeps::Everything, Together::start(0)?, |ground, load| {
                ground.move_slots(SLOTS_MOVED, load.rng)
            })
        }),
        Trial::test("the_work_of_a_dead_process_is_taken_over_in_time_on_a_cluster", || {
            take_over(&Together::start(0)?)
        }),
        Trial::test("who_waits_gets_it_although_a_primary_was_killed", || {
            waits::run("PrimaryKilled", Together::start(0)?, |ground| {
                let killed = ground.kill_primary(&mut fastrand::Rng::new())?;
                ground.bring_back(killed)
            })
        }),
    ]
}

fn trials_of_functions() -> Vec<Trial> {
    vec![
        Trial::test("functions_that_were_flushed_are_given_again", functions::flushed),
        Trial::test("functions_that_were_flushed_are_given_again_to_a_cluster", functions::flushed_on_a_cluster),
        Trial::test(
            "functions_are_given_to_a_server_that_forgot_everything",
            functions::forgotten_with_everything_else,
        ),
        Trial::test("functions_are_given_to_a_replica_that_took_over", functions::missing_where_a_replica_took_over),
    ]
}

fn kill_server(ground: &mut Alone, load: &mut Load<'_>) -> Result<(), Failed> {
    ground.0.kill();
    std::thread::sleep(Duration::from_millis(load.rng.u64(..500)));
    Ok(ground.0.restart()?)
}

fn cut_connections(ground: &mut Alone, load: &mut Load<'_>) -> Result<(), Failed> {
    for _ in 0..CUTS {
        ground.cut(if load.rng.bool() { "normal" } else { "pubsub" })?;
        let more = load.rng.usize(1..10);
        load.follow(more)?;
    }
    Ok(())
}

/// Nothing is acknowledged while the new primary has no replica, so the old one comes back at once.
fn replace_primary(ground: &mut Together, load: &mut Load<'_>) -> Result<(), Failed> {
    let killed = ground.kill_primary(load.rng)?;
    ground.bring_back(killed)
}

/// The store goes on without the old one.
fn outlast_primary(ground: &mut Together, load: &mut Load<'_>) -> Result<(), Failed> {
    let killed = ground.kill_primary(load.rng)?;
    load.follow(20)?;
    ground.bring_back(killed)
}

fn take_over(ground: &impl Ground<Site = Site>) -> Result<(), Failed> {
    takeover::run(ground.site())
}
