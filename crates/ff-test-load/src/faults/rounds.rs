//! Load, a fault, more load; then everything is held against what callers were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ff_engine::key::Key;
use ff_engine::records::Record;
use libtest_mimic::Failed;

use super::Ground;
use super::crew::{Crew, PROCESSES};
use super::follower::Follower;
use crate::journal::caller::{LANES, Manner};
use crate::journal::model::Model;
use crate::journal::verify::Found;
use crate::site::{Site, finish, has_sound_indexes};
use crate::{drain, owners};

/// What is kept through a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All that anybody was told or has seen.
    Everything,
    /// All that was acknowledged. What somebody saw before that may be gone, or happen again: a server took over that did not have it.
    Acknowledged,
    /// What was acknowledged in the last moments may be gone, too. What is there is whole, has one owner at most, and ends.
    Soundness,
}

/// The load while something goes wrong.
pub struct Load<'a> {
    crew: &'a mut Crew,
    model: &'a mut Model,
    /// Chooses the same in a run that is repeated.
    pub rng: &'a mut fastrand::Rng,
}

impl Load<'_> {
    /// Lets it work until every process has had so many answers more.
    ///
    /// # Errors
    /// When it gets none, and when one is wrong.
    pub fn follow(&mut self, more: usize) -> Result<(), Failed> {
        Ok(self.crew.follow(more, self.model)?)
    }

    /// Kills one of the processes.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill_one(&mut self) -> Result<(), Failed> {
        self.crew.kill(self.rng.usize(..PROCESSES))
    }
}

/// A store that things happen to, and what is known about it.
struct Stage<G> {
    ground: G,
    keeps: Keeps,
    rng: fastrand::Rng,
    model: Model,
    /// None where nobody can rely on what it sees.
    follower: Option<Follower>,
    tally: Tally,
}

/// What came of it.
#[derive(Default)]
struct Tally {
    acknowledged: usize,
    /// Calls that were on their way when something went wrong.
    struck: usize,
    /// Calls that were never answered, or told to try again.
    open: usize,
    happened: usize,
    /// Executions that were acknowledged and are not there.
    lost: usize,
    subscribed_again: usize,
    /// Changes that a follower was told again.
    told_again: usize,
    reasons: BTreeMap<String, usize>,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Has something go wrong under load, round after round.
///
/// # Errors
/// What does not hold then.
#[allow(clippy::print_stdout, reason = "a failing run is repeated with its seed, and the figures are for people")]
pub fn run<G: Ground>(
    name: &str,
    keeps: Keeps,
    ground: G,
    strike: impl Fn(&mut G, &mut Load<'_>) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let seed = number("FF_CRASH_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let rounds = usize::try_from(number("FF_CRASH_ROUNDS").unwrap_or(2))?;
    println!("{name}: FF_CRASH_SEED={seed} FF_CRASH_ROUNDS={rounds}");
    let mut stage = Stage::new(ground, keeps, seed);
    for round in 0..rounds {
        let manner = Manner {
            seed: stage.rng.u64(..),
            round,
            is_remote: true,
            is_forgiving: keeps == Keeps::Soundness,
            ..Manner::default()
        };
        let done = stage.round(&manner, &strike);
        done.map_err(|why| format!("FF_CRASH_SEED={seed}: round {round}: {}", told(&why)))?;
    }
    finish(stage.ends()).map_err(|why| format!("FF_CRASH_SEED={seed}: at the end: {}", told(&why)))?;
    let Tally { acknowledged, struck, open, happened, lost, subscribed_again, told_again, reasons } = stage.tally;
    println!(
        "{name}, {rounds} rounds: {acknowledged} acknowledged, {lost} executions of them lost; {struck} on their way when it struck; \
         {open} without an answer, {happened} of them there; subscribed again {subscribed_again} times and told {told_again} changes again; callers were told {reasons:?}",
    );
    if struck == 0 {
        return Err("nobody was interrupted: no load, no test".into());
    }
    // Only what was on its way can happen again.
    if told_again > struck { Err("a follower was told more again than can have happened again".into()) } else { Ok(()) }
}

fn told(why: &Failed) -> String {
    why.message().unwrap_or("for no reason").to_owned()
}

/// Has a store acknowledge completions that it does not make, which must be noticed.
///
/// # Errors
/// When nobody notices, or something else is noticed.
pub fn a_loss_is_noticed(ground: impl Ground) -> Result<(), Failed> {
    let mut stage = Stage::new(ground, Keeps::Everything, 7);
    let manner = Manner { seed: 7, forgets: true, is_remote: true, ..Manner::default() };
    match stage.round(&manner, &|_, load| load.kill_one()).map_err(|why| told(&why)) {
        Ok(()) => Err("nobody noticed that completions are lost".into()),
        Err(why) if why.contains("is Active, not one of [Completed]") => Ok(()),
        Err(why) => Err(format!("something else was noticed: {why}").into()),
    }
}

impl<G: Ground> Stage<G> {
    fn new(ground: G, keeps: Keeps, seed: u64) -> Self {
        let follower =
            (keeps != Keeps::Soundness).then(|| Follower::start(ground.site(), keeps == Keeps::Acknowledged));
        let (rng, model, tally) = (fastrand::Rng::with_seed(seed), Model::default(), Tally::default());
        Self { ground, keeps, rng, model, follower, tally }
    }

    fn round(
        &mut self,
        manner: &Manner,
        strike: &impl Fn(&mut G, &mut Load<'_>) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let mut crew = Crew::start(&self.ground.site_of_load(), manner)?;
        let mut load = Load { crew: &mut crew, model: &mut self.model, rng: &mut self.rng };
        let (before, after) = (load.rng.usize(20..150), load.rng.usize(20..80));
        load.follow(before)?;
        self.tally.struck += load.model.pending.len();
        strike(&mut self.ground, &mut load)?;
        load.follow(after)?;
        crew.end(&self.ground, &mut self.model)?;
        for (reason, times) in std::mem::take(&mut crew.reasons) {
            *self.tally.reasons.entry(reason).or_default() += times;
        }
        self.tally.open += self.model.pending.len() + self.model.unanswered.len();
        finish(self.verify())
    }

    async fn verify(&mut self) -> Result<(), Failed> {
        let backend = self.ground.site().open(None).await?;
        let found = Found::look(&backend).await?;
        found.is_sound()?;
        owners::nothing_is_owned_twice(found.events())?;
        if self.keeps == Keeps::Soundness {
            // What is lost can no longer be told from what never was, so the next round begins with what is there.
            let model = std::mem::take(&mut self.model);
            self.tally.acknowledged += model.acknowledged;
            self.tally.lost += found.missing(&model);
        } else {
            self.tally.happened += found.agrees_with(&mut self.model).await?;
            self.tally.acknowledged = self.model.acknowledged;
        }
        if let Some(follower) = &self.follower {
            follower.sees(found.events())?;
        }
        Ok(())
    }

    /// Everything comes to its end, and nothing is missing then.
    async fn ends(&mut self) -> Result<(), Failed> {
        let clock = drain::later();
        let backend = self.ground.site().open(Some(Arc::new(clock.clone()))).await?;
        let (records, events) = drain::everything_ends(&backend, &clock, &LANES.map(str::to_owned)).await?;
        owners::nothing_is_owned_twice(&events)?;
        if let Some(follower) = &self.follower {
            (self.tally.subscribed_again, self.tally.told_again) = follower.has_seen(&events)?;
        }
        has_sound_indexes(backend.store()).await?;
        let left: BTreeSet<Key> = records.iter().map(Record::key).collect();
        let lost: Vec<_> = self.model.executions.keys().filter(|id| !left.contains(&Key::execution(**id))).collect();
        if lost.is_empty() { Ok(()) } else { Err(format!("lost at the end: {lost:?}").into()) }
    }
}
