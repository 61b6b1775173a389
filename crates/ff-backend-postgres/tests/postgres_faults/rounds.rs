//! Load, a fault, more load; then everything is held against what callers were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_test_load::journal::caller::{LANES, Manner};
use ff_test_load::journal::model::Model;
use ff_test_load::journal::verify::Found;
use ff_test_load::{drain, owners};
use ff_test_servers::postgres::PostgresServer;
use libtest_mimic::Failed;

use crate::crew::Crew;
use crate::follower::Follower;
use crate::site::{Site, finish, has_sound_indexes};
use crate::{end_sessions, start};

/// How often sessions are ended in a round.
const ENDINGS: usize = 10;

/// What goes wrong in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    ServerKilled,
    SessionsEnded,
    ProcessKilled,
}

/// A store that things happen to, and what is known about it.
struct Stage {
    server: PostgresServer,
    site: Site,
    rng: fastrand::Rng,
    model: Model,
    follower: Follower,
    tally: Tally,
}

/// What came of it.
#[derive(Default)]
struct Tally {
    open: usize,
    happened: usize,
    subscribed_again: usize,
    reasons: BTreeMap<String, usize>,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[allow(clippy::print_stdout, reason = "a failing run is repeated with its seed, and the figures are for people")]
pub(crate) fn run(fault: Fault) -> Result<(), Failed> {
    let seed = number("FF_CRASH_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let rounds = usize::try_from(number("FF_CRASH_ROUNDS").unwrap_or(2))?;
    println!("{fault:?}: FF_CRASH_SEED={seed} FF_CRASH_ROUNDS={rounds}");
    let mut stage = Stage::new(seed)?;
    for round in 0..rounds {
        let manner = Manner { seed: stage.rng.u64(..), round, is_remote: true, ..Manner::default() };
        stage.round(fault, &manner).map_err(|why| format!("FF_CRASH_SEED={seed}: round {round}: {}", told(&why)))?;
    }
    finish(stage.ends()).map_err(|why| format!("FF_CRASH_SEED={seed}: at the end: {}", told(&why)))?;
    let Tally { open, happened, subscribed_again, reasons } = stage.tally;
    println!(
        "{fault:?}, {rounds} rounds: {} acknowledged, {open} without an answer, {happened} of them there; \
         subscribed again {subscribed_again} times; callers were told {reasons:?}",
        stage.model.acknowledged
    );
    if fault == Fault::ServerKilled && open == 0 {
        return Err("nobody noticed that the server was killed: no load, no test".into());
    }
    Ok(())
}

fn told(why: &Failed) -> String {
    why.message().unwrap_or("for no reason").to_owned()
}

pub(crate) fn a_loss() -> Result<(), Failed> {
    let mut stage = Stage::new(7)?;
    let manner = Manner { seed: 7, forgets: true, is_remote: true, ..Manner::default() };
    match stage.round(Fault::ProcessKilled, &manner).map_err(|why| told(&why)) {
        Ok(()) => Err("nobody noticed that completions are lost".into()),
        Err(why) if why.contains("is Active, not one of [Completed]") => Ok(()),
        Err(why) => Err(format!("something else was noticed: {why}").into()),
    }
}

impl Stage {
    fn new(seed: u64) -> Result<Self, Failed> {
        let (server, site) = start()?;
        let follower = Follower::start(site.clone());
        let (rng, model, tally) = (fastrand::Rng::with_seed(seed), Model::default(), Tally::default());
        Ok(Self { server, site, rng, model, follower, tally })
    }

    fn round(&mut self, fault: Fault, manner: &Manner) -> Result<(), Failed> {
        let mut crew = Crew::start(&self.site, manner)?;
        crew.follow(self.rng.usize(20..150), &mut self.model)?;
        self.strike(fault, &mut crew)?;
        crew.follow(self.rng.usize(20..80), &mut self.model)?;
        crew.end(&self.server, &mut self.model)?;
        for (reason, times) in std::mem::take(&mut crew.reasons) {
            *self.tally.reasons.entry(reason).or_default() += times;
        }
        self.tally.open += self.model.pending.len() + self.model.unanswered.len();
        finish(self.verify())
    }

    fn strike(&mut self, fault: Fault, crew: &mut Crew) -> Result<(), Failed> {
        match fault {
            Fault::ServerKilled => {
                self.server.kill();
                std::thread::sleep(Duration::from_millis(self.rng.u64(..500)));
                self.server.restart()?;
            }
            Fault::SessionsEnded => {
                for _ in 0..ENDINGS {
                    let many = self.rng.usize(1..6);
                    end_sessions(&self.server, Some(many))?;
                    crew.follow(self.rng.usize(1..10), &mut self.model)?;
                }
            }
            Fault::ProcessKilled => crew.kill(self.rng.usize(..2))?,
        }
        Ok(())
    }

    async fn verify(&mut self) -> Result<(), Failed> {
        let backend = self.site.open(None).await?;
        let found = Found::look(&backend).await?;
        found.is_sound()?;
        self.tally.happened += found.agrees_with(&mut self.model).await?;
        owners::nothing_is_owned_twice(found.events())?;
        self.follower.sees(found.events())?;
        Ok(())
    }

    /// Everything comes to its end, and nothing is missing then.
    async fn ends(&mut self) -> Result<(), Failed> {
        let clock = drain::later();
        let backend = self.site.open(Some(Arc::new(clock.clone()))).await?;
        let (records, events) = drain::everything_ends(&backend, &clock, &LANES.map(str::to_owned)).await?;
        owners::nothing_is_owned_twice(&events)?;
        self.tally.subscribed_again = self.follower.has_seen(&events)?;
        has_sound_indexes(backend.store()).await?;
        let left: BTreeSet<Key> = records.iter().map(Record::key).collect();
        let lost: Vec<_> = self.model.executions.keys().filter(|id| !left.contains(&Key::execution(**id))).collect();
        if lost.is_empty() { Ok(()) } else { Err(format!("lost at the end: {lost:?}").into()) }
    }
}
