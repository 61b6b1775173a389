//! One simulated history: processes on one troubled store, a clock, and what the actors remember.

use std::any::Any;
use std::cell::{Ref, RefCell, RefMut};
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::num::NonZeroU16;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ff_core::cursor::EventCursor;
use ff_core::partition::PartitionCounts;
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::Settings;
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::entropy::SeededEntropy;
use ff_engine::store::Inspect;
use futures_util::FutureExt;

use crate::call::{Answer, Call, Reply};
use crate::checker::Checker;
use crate::deployment::{Deployment, Process};
use crate::history::History;
use crate::invariants::Invariant;
use crate::memory::Memory;
use crate::rng::Rng;
use crate::run::Plan;
use crate::transcript::{Line, Transcript};
use crate::trouble::{Course, Odds, Trouble};
use crate::troubled_store::TroubledStore;

/// When every simulation begins.
pub(crate) const START: TimestampMs = TimestampMs(1_700_000_000_000);

/// Few partitions, so that everything meets everything.
pub(crate) const COUNTS: PartitionCounts = PartitionCounts {
    flow: NonZeroU16::new(4).expect("not zero"),
    budget: NonZeroU16::new(2).expect("not zero"),
    quota: NonZeroU16::new(2).expect("not zero"),
};

/// How many of them executions and flows have.
pub(crate) const PARTITIONS: usize = COUNTS.flow.get() as usize;

/// How many processes serve the deployment.
const PROCESSES: usize = 2;

/// How long a store that waits may take for what is there already.
const SOON: Duration = Duration::from_secs(10);

/// Everything a seed owns.
pub(crate) struct World {
    processes: RefCell<Vec<Process>>,
    settings: Settings,
    deployment: Box<dyn Deployment>,
    /// The cursor before the first event.
    beginning: EventCursor,
    /// Whether the store may keep its callers waiting.
    waits: bool,
    pub(crate) clock: ManualClock,
    rng: Rng,
    memory: RefCell<Memory>,
    checker: RefCell<Checker>,
    history: RefCell<History>,
    transcript: RefCell<Transcript>,
}

/// How a seed is set up: what differs from seed to seed apart from the choices of actors.
fn settings(seed: u64, rng: &Rng) -> Settings {
    Settings {
        counts: COUNTS,
        retention_ms: rng.one_of([24 * 60 * 60 * 1000, 20 * 60 * 1000]),
        slice: rng.one_of([200, 3]),
        settle_at_once: rng.chance(50),
        entropy: Arc::new(SeededEntropy::new(seed)),
        ..Settings::default()
    }
}

fn odds(rng: &Rng) -> Odds {
    // A death strikes only who waits, so where nothing makes a call wait, nobody dies.
    let death = 12;
    match rng.below(4) {
        0 => Odds { death, ..Odds::default() },
        1 => Odds { pause: 150, conflict: 50, death, ..Odds::default() },
        2 => Odds { pause: 100, conflict: 30, crash_before: 20, crash_after: 20, death },
        _ => Odds { pause: 300, conflict: 100, crash_before: 60, crash_after: 60, death },
    }
}

/// How a history is played.
pub(crate) enum Setting {
    /// By itself, on a store that never waits: callers interleave within transactions.
    Free,
    /// On any store, which callers use in turn.
    InTurn { course: Course, transcript: Transcript },
}

impl World {
    /// A fresh deployment on an empty store that tells the time of `clock`.
    pub(crate) async fn new<S: Inspect>(plan: Plan, clock: ManualClock, store: S, setting: Setting) -> Result<Self> {
        let rng = Rng::new(plan.seed, 0);
        let settings = settings(plan.seed, &rng);
        let odds = odds(&rng);
        let beginning = store.events(&EventCursor::TAIL, 0).await?.next;
        let spans = store.spans_partitions();
        let (waits, trouble, transcript) = match setting {
            Setting::Free => (false, Trouble::free(plan.seed, odds), Transcript::Unwritten),
            Setting::InTurn { course, transcript } => (true, Trouble::in_turn(plan.seed, odds, course), transcript),
        };
        let world = Self {
            processes: RefCell::default(),
            settings,
            deployment: Box::new(TroubledStore::new(store, trouble)),
            beginning,
            waits,
            clock,
            rng,
            memory: RefCell::new(Memory::new()),
            checker: RefCell::default(),
            history: RefCell::new(History::new(plan.whole)),
            transcript: RefCell::new(transcript),
        };
        // The engine does some work in one transaction where it can, so only alike stores have alike histories.
        world.tell("whether transactions span partitions".to_owned(), spans.to_string());
        for _ in 0..PROCESSES {
            let process = world.open().await?;
            world.processes.borrow_mut().push(process);
        }
        Ok(world)
    }

    async fn open(&self) -> Result<Process> {
        // Trouble may keep a process from starting; it tries again, as a supervisor would let it.
        loop {
            match self.deployment.open(self.settings.clone()).await {
                Err(error) if is_trouble(&error) => {}
                opened => {
                    self.observe(None);
                    return opened;
                }
            }
        }
    }

    /// One of the processes.
    pub(crate) fn engine(&self) -> Process {
        let processes = self.processes.borrow();
        Rc::clone(&processes[self.rng().below(processes.len())])
    }

    /// A process dies with all it has in memory; another takes its place.
    pub(crate) async fn restart_process(&self) {
        if let Ok(process) = self.open().await {
            let at = self.rng().below(PROCESSES);
            self.processes.borrow_mut()[at] = process;
        }
    }

    /// Every process starts anew.
    pub(crate) async fn restart_all(&self) {
        for at in 0..PROCESSES {
            if let Ok(process) = self.open().await {
                self.processes.borrow_mut()[at] = process;
            }
        }
    }

    /// The time as the store tells it.
    pub(crate) fn now(&self) -> TimestampMs {
        self.checker.borrow().latest().max(self.clock.now())
    }

    pub(crate) fn rng(&self) -> &Rng {
        &self.rng
    }

    pub(crate) fn memory(&self) -> RefMut<'_, Memory> {
        self.memory.borrow_mut()
    }

    pub(crate) fn checker(&self) -> RefMut<'_, Checker> {
        self.checker.borrow_mut()
    }

    /// What is stored, as far as commits tell.
    pub(crate) fn seen(&self) -> Ref<'_, Checker> {
        self.checker.borrow()
    }

    pub(crate) fn history(&self) -> RefMut<'_, History> {
        self.history.borrow_mut()
    }

    /// The store, past all trouble.
    pub(crate) fn deployment(&self) -> &dyn Deployment {
        &*self.deployment
    }

    pub(crate) fn trouble(&self) -> &Trouble {
        self.deployment.trouble()
    }

    /// The cursor before the first event: subscriptions begin at the tail, so nobody can make one later.
    pub(crate) const fn beginning(&self) -> &EventCursor {
        &self.beginning
    }

    /// What a future answers without waiting for anybody else.
    pub(crate) async fn soon<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        if self.waits { tokio::time::timeout(SOON, future).await.ok() } else { future.now_or_never() }
    }

    /// Takes the transcript away.
    pub(crate) fn take_transcript(&self) -> Transcript {
        self.transcript.take()
    }

    /// Adds to the transcript.
    pub(crate) fn tell(&self, call: String, answer: String) {
        let step = self.history.borrow().step();
        let agrees = self.transcript.borrow_mut().take(step, Line { call, answer });
        if !agrees && self.checker.borrow().violation().is_none() {
            self.checker.borrow_mut().report(Invariant::StoresAgree, "an answer differs".to_owned());
        }
    }

    fn observe(&self, call: Option<usize>) {
        for commit in self.trouble().take_log() {
            self.checker.borrow_mut().commit(call, commit);
        }
        if let Some(how) = self.trouble().take_astray() {
            self.checker.borrow_mut().report(Invariant::StoresAgree, how);
        }
    }

    /// Makes a call: its commits are checked as they happen, its answer when it comes.
    pub(crate) async fn call<T: Debug + Any>(&self, call: Call, future: impl Future<Output = Result<T>>) -> Reply<T> {
        let line = format!("+{:<9} {} {}", self.now().0 - START.0, call.op, call.detail);
        let op = call.op;
        let id = self.checker.borrow_mut().begin(call);
        let reply = {
            let mut future = Box::pin(future);
            poll_fn(|context| {
                let polled = future.as_mut().poll(context);
                self.observe(Some(id));
                match polled {
                    Poll::Ready(Ok(answer)) => Poll::Ready(Reply::Done(answer)),
                    Poll::Ready(Err(error)) if is_trouble(&error) => Poll::Ready(Reply::Lost),
                    Poll::Ready(Err(error)) => Poll::Ready(Reply::Refused(error)),
                    Poll::Pending if self.trouble().strikes(self.trouble().odds().death) => Poll::Ready(Reply::Lost),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        self.note(op, line, &reply);
        let answer = match &reply {
            Reply::Done(answer) => Answer::Done(answer),
            Reply::Refused(error) => Answer::Refused(error),
            Reply::Lost => Answer::Lost,
        };
        self.checker.borrow_mut().finish(id, answer);
        reply
    }

    fn note<T: Debug>(&self, op: &'static str, line: String, reply: &Reply<T>) {
        let (text, told) = match reply {
            Reply::Done(answer) => {
                self.history().count(op, |tally| &mut tally.done);
                (format!("{answer:?}"), None)
            }
            Reply::Refused(error) => {
                self.history().count(op, |tally| &mut tally.refused);
                (format!("refused: {error}"), Some(format!("refused: {error:?}")))
            }
            Reply::Lost => {
                self.history().count(op, |tally| &mut tally.lost);
                ("reply lost".to_owned(), None)
            }
        };
        self.history().note(format!("{line} -> {text}"));
        self.tell(line, self.without_tag(&told.unwrap_or(text)));
    }

    /// An answer without the name of the store that gave it.
    fn without_tag(&self, text: &str) -> String {
        text.replace(&format!("backend: {:?}", self.deployment.tag()), "backend: _")
    }
}

/// Whether an error is one that the simulation made.
fn is_trouble(error: &EngineError) -> bool {
    matches!(error, EngineError::Transport { backend: crate::trouble::BACKEND, .. })
}
