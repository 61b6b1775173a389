//! Plays the history of one seed.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::actors::{self, Acting};
use crate::history::Tally;
use crate::invariants::{Invariant, Violation};
use crate::settle;
use crate::world::World;

/// What to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// How many steps are taken before everything may come to rest.
    pub steps: usize,
    /// Whether the whole history is kept, and not only its end.
    pub whole: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plan that was played.
    pub plan: Plan,
    /// Steps that were taken.
    pub steps: usize,
    /// The first property that did not hold.
    pub violation: Option<Violation>,
    /// What happened, line by line.
    pub history: Vec<String>,
    /// A digest of the whole history: equal plans have equal digests.
    pub digest: u64,
    /// How often each operation had which fate.
    pub tally: BTreeMap<&'static str, Tally>,
}

/// Steps between two looks at everything that is stored.
const SCAN_EVERY: usize = 50;

/// Turns after which a call is taken to hang.
const TURNS_MAX: usize = 200_000;

/// Plays a plan.
#[must_use]
pub fn run(plan: Plan) -> Report {
    let mut opening = pin!(World::new(plan.seed, plan.whole));
    let world = loop {
        if let Poll::Ready(opened) = opening.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break opened.expect("a fresh store opens");
        }
    };
    drive(&world, vec![Box::pin(settle::prepare(&world))]);
    let mut steps = 0;
    while steps < plan.steps && world.seen().violation().is_none() {
        steps += 1;
        step(&world, steps);
    }
    if world.seen().violation().is_none() {
        world.history().begin(steps + 1);
        drive(&world, vec![Box::pin(settle::come_to_rest(&world))]);
    }
    let violation = world.seen().violation().cloned();
    let history = world.history();
    Report { plan, steps, violation, history: history.lines(), digest: history.hash(), tally: history.tally().clone() }
}

fn step(world: &World, number: usize) {
    world.history().begin(number);
    let (tick, together) = {
        let rng = world.rng();
        let together = 1 + usize::from(rng.chance(25)) + usize::from(rng.chance(8));
        (rng.between(0, 150), together)
    };
    world.clock.advance(tick);
    let acting = (0..together).map(|_| actors::next(world)).collect();
    drive(world, acting);
    if number.is_multiple_of(SCAN_EVERY) {
        world.checker().scan();
    }
}

/// Lets actions take turns until all have ended; the seed decides whose turn it is.
pub(crate) fn drive<'w>(world: &'w World, mut acting: Vec<Acting<'w>>) {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..TURNS_MAX {
        if acting.is_empty() {
            return;
        }
        let turn = if acting.len() == 1 { 0 } else { world.rng().below(acting.len()) };
        if acting[turn].as_mut().poll(&mut context).is_ready() {
            drop(acting.swap_remove(turn));
        }
    }
    world.checker().report(Invariant::SoundAnswers, format!("{} actions hang", acting.len()));
}

impl Plan {
    /// A plan that keeps only the end of its history.
    #[must_use]
    pub const fn new(seed: u64, steps: usize) -> Self {
        Self { seed, steps, whole: false }
    }
}
