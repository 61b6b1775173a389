//! Trouble a seed makes, and the commits that happen in spite of it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use ff_core::partition::Partition;
use ff_core::{EngineError, TimestampMs};
use ff_engine::event::Event;
use ff_engine::key::Key;
use ff_engine::records::Record;

use crate::rng::Rng;

/// How much trouble a seed makes, each in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Odds {
    /// A transaction lets others run, at each of its steps.
    pub(crate) pause: u32,
    /// A transaction is run, dropped and run again.
    pub(crate) conflict: u32,
    /// A transaction fails before it commits.
    pub(crate) crash_before: u32,
    /// A transaction commits and its reply is lost.
    pub(crate) crash_after: u32,
    /// A process dies in the middle of a call, whenever the call waits.
    pub(crate) death: u32,
}

impl Odds {
    /// Without the trouble whose moment depends on how fast a store answers.
    pub(crate) const fn in_turn(self) -> Self {
        Self { pause: 0, death: 0, ..self }
    }
}

/// One finished transaction.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    /// Where it may write; `None` means everywhere.
    pub(crate) home: Option<Partition>,
    pub(crate) now: TimestampMs,
    /// In the order of the keys; `None` means deleted.
    pub(crate) changes: Vec<(Key, Option<Record>)>,
    pub(crate) events: Vec<Event>,
}

/// What came of each transaction, in order: what it committed, or nothing because it was refused.
pub(crate) type Script = VecDeque<Option<Commit>>;

/// Where the commits come from that the checker follows.
pub(crate) enum Course {
    /// Every transaction is watched as it runs.
    Watched,
    /// As watched, and written down.
    Recorded(Script),
    /// Transactions run unwatched, as a store likes to run them; they are taken to commit what the script says.
    Scripted(Script),
}

/// Makes trouble, and notes what is committed.
pub(crate) struct Trouble {
    odds: Odds,
    enabled: AtomicBool,
    rng: Mutex<Rng>,
    log: Mutex<Vec<Commit>>,
    course: Mutex<Course>,
    /// Commits that changed something.
    writes: AtomicU64,
    /// Transactions that did not end as the script says.
    astray: Mutex<Option<String>>,
    /// Whoever wants the store, one after the other; `None` lets them in together.
    turns: Option<tokio::sync::Mutex<()>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whose connection breaks when trouble strikes.
pub(crate) const BACKEND: &str = "simulation";

/// The connection broke.
pub(crate) fn broken(when: &'static str) -> EngineError {
    EngineError::Transport { backend: BACKEND, retryable: true, source: Arc::new(std::io::Error::other(when)) }
}

/// Lets others run once.
struct Pause(bool);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Trouble {
    /// Trouble of a seed for a store that answers at once: whoever calls it, calls it in between.
    pub(crate) fn free(seed: u64, odds: Odds) -> Self {
        Self {
            odds,
            enabled: AtomicBool::new(true),
            rng: Mutex::new(Rng::new(seed, 0x7a0b)),
            log: Mutex::default(),
            course: Mutex::new(Course::Watched),
            writes: AtomicU64::new(0),
            astray: Mutex::default(),
            turns: None,
        }
    }

    /// Trouble of a seed for any store: the store is called by one at a time, in an order that does not depend on how fast it is.
    pub(crate) fn in_turn(seed: u64, odds: Odds, course: Course) -> Self {
        let turns = Some(tokio::sync::Mutex::default());
        Self { course: Mutex::new(course), turns, ..Self::free(seed, odds.in_turn()) }
    }

    pub(crate) const fn odds(&self) -> Odds {
        self.odds
    }

    /// Ends all trouble.
    pub(crate) fn calm_down(&self) {
        self.enabled.store(false, Ordering::Relaxed);
    }

    /// Whether trouble of this likelihood strikes now.
    pub(crate) fn strikes(&self, permille: u32) -> bool {
        self.enabled.load(Ordering::Relaxed) && permille > 0 && lock(&self.rng).rarely(permille)
    }

    pub(crate) async fn maybe_pause(&self) {
        if self.strikes(self.odds.pause) {
            Pause(false).await;
        }
    }

    /// Waits for a turn at the store, where turns are taken.
    pub(crate) async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let turn = self.turns.as_ref()?.lock().await;
        // Everybody else gets in line before this turn begins, so the line is the same however long turns last.
        Pause(false).await;
        Some(turn)
    }

    pub(crate) fn is_scripted(&self) -> bool {
        matches!(*lock(&self.course), Course::Scripted(_))
    }

    /// A watched transaction ended.
    pub(crate) fn watched(&self, commit: Option<Commit>) {
        if let Course::Recorded(script) = &mut *lock(&self.course) {
            script.push_back(commit.clone());
        }
        commit.into_iter().for_each(|commit| self.note(commit));
    }

    /// An unwatched transaction ended.
    pub(crate) fn unwatched(&self, committed: bool) {
        let wanted = match &mut *lock(&self.course) {
            Course::Scripted(script) => script.pop_front(),
            _ => None,
        };
        match (committed, wanted) {
            (true, Some(Some(commit))) => self.note(commit),
            (false, Some(None)) => {}
            (committed, wanted) => {
                let wanted = wanted.map(|commit| commit.is_some());
                let told = format!("a transaction committed: {committed}, by the script: {wanted:?}");
                lock(&self.astray).get_or_insert(told);
            }
        }
    }

    fn note(&self, commit: Commit) {
        if !commit.changes.is_empty() || !commit.events.is_empty() {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.log).push(commit);
    }

    /// Transactions that finished since the last question.
    pub(crate) fn take_log(&self) -> Vec<Commit> {
        std::mem::take(&mut lock(&self.log))
    }

    /// How a transaction left the script, told once.
    pub(crate) fn take_astray(&self) -> Option<String> {
        lock(&self.astray).take()
    }

    /// What was written down.
    pub(crate) fn take_script(&self) -> Script {
        match std::mem::replace(&mut *lock(&self.course), Course::Watched) {
            Course::Recorded(script) | Course::Scripted(script) => script,
            Course::Watched => Script::new(),
        }
    }

    /// How many commits changed something.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }
}
