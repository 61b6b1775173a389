//! Plays the history of one seed.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ff_core::{EngineError, Result};
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::memory::MemoryStore;
use ff_engine::store::Inspect;
use tokio::runtime::Runtime;

use crate::actors::{self, Acting};
use crate::history::Tally;
use crate::invariants::{Invariant, Violation};
use crate::settle;
use crate::stored;
use crate::transcript::Transcript;
use crate::trouble::{Course, Script};
use crate::world::{START, Setting, World};

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

impl Plan {
    /// A plan that keeps only the end of its history.
    #[must_use]
    pub const fn new(seed: u64, steps: usize) -> Self {
        Self { seed, steps, whole: false }
    }
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

/// Turns after which a call is taken to hang, on a store that never waits.
const TURNS_MAX: usize = 200_000;

/// Time after which a call is taken to hang, on a store that may wait.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Plays a plan in memory, with callers that interleave within transactions.
#[must_use]
pub fn run(plan: Plan) -> Report {
    let clock = ManualClock::at(START);
    let store = MemoryStore::new(Arc::new(clock.clone()));
    // Every other seed tries the ways that a store opens whose transactions look at all partitions.
    let store = if plan.seed.is_multiple_of(2) { store } else { store.spanning_partitions() };
    let pace = Pace::Free;
    let world = pace.finish(World::new(plan, clock, store, Setting::Free)).expect("a fresh store opens");
    play(&world, &pace, plan)
}

/// Plays a plan on a store of any kind, which callers use in turn. `open` makes the store, empty, on the clock it is given.
///
/// Every operation is watched, so a store sees none that it could recognise: its shortcuts rest.
///
/// # Errors
/// When the store cannot be opened.
///
/// # Panics
/// Inside of an asynchronous runtime: the history has one of its own.
pub fn run_on<S: Inspect>(plan: Plan, open: impl AsyncFnOnce(Arc<dyn Clock>) -> Result<S>) -> Result<Report> {
    let setting = Setting::InTurn { course: Course::Watched, transcript: Transcript::Unwritten };
    Ok(play_in_turn(plan, open, setting)?.report)
}

/// A history that was played in turn.
pub(crate) struct Played {
    pub(crate) report: Report,
    pub(crate) script: Script,
    pub(crate) transcript: Transcript,
}

/// Plays a plan in turn.
pub(crate) fn play_in_turn<S: Inspect>(
    plan: Plan,
    open: impl AsyncFnOnce(Arc<dyn Clock>) -> Result<S>,
    setting: Setting,
) -> Result<Played> {
    let pace = Pace::InTurn(tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_runtime)?);
    let clock = ManualClock::at(START);
    let world = pace.finish(async {
        let store = open(Arc::new(clock.clone())).await?;
        World::new(plan, clock, store, setting).await
    })?;
    let report = play(&world, &pace, plan);
    Ok(Played { report, script: world.trouble().take_script(), transcript: world.take_transcript() })
}

fn no_runtime(error: std::io::Error) -> EngineError {
    EngineError::Transport { backend: "runtime", retryable: false, source: Arc::new(error) }
}

fn play(world: &World, pace: &Pace, plan: Plan) -> Report {
    pace.drive(world, vec![Box::pin(settle::prepare(world))]);
    let mut steps = 0;
    while steps < plan.steps && world.seen().violation().is_none() {
        steps += 1;
        step(world, pace, steps);
    }
    if world.seen().violation().is_none() {
        world.history().begin(steps + 1);
        pace.drive(world, vec![Box::pin(settle::come_to_rest(world))]);
    }
    let violation = world.seen().violation().cloned();
    let history = world.history();
    Report { plan, steps, violation, history: history.lines(), digest: history.hash(), tally: history.tally().clone() }
}

fn step(world: &World, pace: &Pace, number: usize) {
    world.history().begin(number);
    let (tick, together) = {
        let rng = world.rng();
        let together = 1 + usize::from(rng.chance(25)) + usize::from(rng.chance(8));
        (rng.between(0, 150), together)
    };
    world.clock.advance(tick);
    let acting = (0..together).map(|_| actors::next(world)).collect();
    pace.drive(world, acting);
    if number.is_multiple_of(SCAN_EVERY) {
        world.checker().scan();
        if let Pace::InTurn(_) = pace {
            pace.finish(stored::is_as_committed(world));
        }
    }
}

/// How actions get on.
pub(crate) enum Pace {
    /// The seed decides whose turn it is, since nobody ever waits for the store.
    Free,
    /// The store decides when they get on, and its line of callers who does.
    InTurn(Runtime),
}

impl Pace {
    /// Finishes one future.
    fn finish<T>(&self, future: impl Future<Output = T>) -> T {
        match self {
            Self::InTurn(runtime) => runtime.block_on(future),
            Self::Free => {
                let mut future = pin!(future);
                loop {
                    if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        return done;
                    }
                }
            }
        }
    }

    /// Lets actions go on until all have ended.
    fn drive<'w>(&self, world: &'w World, acting: Vec<Acting<'w>>) {
        let hanging = match self {
            Self::Free => take_turns(world, acting),
            Self::InTurn(runtime) => runtime.block_on(wait_for_all(acting)),
        };
        if hanging > 0 {
            world.checker().report(Invariant::SoundAnswers, format!("{hanging} actions hang"));
        }
    }
}

/// The seed decides whose turn it is; says how many never end.
fn take_turns<'w>(world: &'w World, mut acting: Vec<Acting<'w>>) -> usize {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..TURNS_MAX {
        if acting.is_empty() {
            return 0;
        }
        let turn = if acting.len() == 1 { 0 } else { world.rng().below(acting.len()) };
        if acting[turn].as_mut().poll(&mut context).is_ready() {
            drop(acting.swap_remove(turn));
        }
    }
    acting.len()
}

/// All go on, in the order in which they began; says how many never end.
async fn wait_for_all(mut acting: Vec<Acting<'_>>) -> usize {
    let all = poll_fn(|context| {
        acting.retain_mut(|action| action.as_mut().poll(context).is_pending());
        if acting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    let ended = tokio::time::timeout(WAIT_MAX, all).await;
    if ended.is_ok() { 0 } else { acting.len() }
}
