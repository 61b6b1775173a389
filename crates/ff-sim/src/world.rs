//! One simulated deployment: processes on one troubled store, a clock, and what the actors remember.

use std::any::Any;
use std::cell::{Ref, RefCell, RefMut};
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::num::NonZeroU16;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use ff_core::partition::PartitionCounts;
use ff_core::{Result, TimestampMs};
use ff_engine::clock::{Clock, ManualClock};
use ff_engine::entropy::SeededEntropy;
use ff_engine::memory::MemoryStore;
use ff_engine::{Engine, Settings};

use crate::call::{Answer, Call, Reply};
use crate::checker::Checker;
use crate::history::History;
use crate::memory::Memory;
use crate::rng::Rng;
use crate::trouble::{Odds, TroubledStore};

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

/// A process dies in the middle of a call, in thousandths of its pauses.
const DEATH: u32 = 12;

pub(crate) type Process = Rc<Engine<TroubledStore>>;

/// Everything a seed owns.
pub(crate) struct World {
    processes: RefCell<Vec<Process>>,
    settings: Settings,
    pub(crate) store: TroubledStore,
    pub(crate) clock: ManualClock,
    rng: Rng,
    memory: RefCell<Memory>,
    checker: RefCell<Checker>,
    history: RefCell<History>,
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
    match rng.below(4) {
        0 => Odds::default(),
        1 => Odds { pause: 150, conflict: 50, ..Odds::default() },
        2 => Odds { pause: 100, conflict: 30, crash_before: 20, crash_after: 20 },
        _ => Odds { pause: 300, conflict: 100, crash_before: 60, crash_after: 60 },
    }
}

impl World {
    /// A fresh deployment; `whole` keeps the whole history.
    pub(crate) async fn new(seed: u64, whole: bool) -> Result<Self> {
        let rng = Rng::new(seed, 0);
        let clock = ManualClock::at(START);
        let settings = settings(seed, &rng);
        let store = TroubledStore::new(MemoryStore::new(Arc::new(clock.clone())), odds(&rng), seed);
        let world = Self {
            processes: RefCell::default(),
            settings,
            store,
            clock,
            rng,
            memory: RefCell::new(Memory::new()),
            checker: RefCell::default(),
            history: RefCell::new(History::new(whole)),
        };
        for _ in 0..PROCESSES {
            let process = world.open().await?;
            world.processes.borrow_mut().push(process);
        }
        Ok(world)
    }

    async fn open(&self) -> Result<Process> {
        // Trouble may keep a process from starting; it tries again, as a supervisor would let it.
        loop {
            match Engine::open(self.store.clone(), self.settings.clone()).await {
                Err(error) if error.code() == "transport" => {}
                opened => {
                    self.observe(None);
                    return opened.map(Rc::new);
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

    fn observe(&self, call: Option<usize>) {
        for commit in self.store.take_log() {
            self.checker.borrow_mut().commit(call, commit);
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
                    Poll::Ready(Err(error)) if error.code() == "transport" => Poll::Ready(Reply::Lost),
                    Poll::Ready(Err(error)) => Poll::Ready(Reply::Refused(error)),
                    Poll::Pending if self.store.strikes(DEATH) => Poll::Ready(Reply::Lost),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        let mut history = self.history.borrow_mut();
        let text = match &reply {
            Reply::Done(answer) => {
                history.count(op, |tally| &mut tally.done);
                format!("{line} -> {answer:?}")
            }
            Reply::Refused(error) => {
                history.count(op, |tally| &mut tally.refused);
                format!("{line} -> refused: {error}")
            }
            Reply::Lost => {
                history.count(op, |tally| &mut tally.lost);
                format!("{line} -> reply lost")
            }
        };
        history.note(text);
        let answer = match &reply {
            Reply::Done(answer) => Answer::Done(answer),
            Reply::Refused(error) => Answer::Refused(error),
            Reply::Lost => Answer::Lost,
        };
        self.checker.borrow_mut().finish(id, answer);
        reply
    }
}
