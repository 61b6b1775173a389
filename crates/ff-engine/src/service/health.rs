//! How the timers of a process are doing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ff_core::TimestampMs;

use crate::timers::FailingItem;

/// Failing items that a health report names.
const NAMED_MAX: usize = 20;

/// A loop of the timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimerLoop {
    /// Work that somebody waits for.
    Due,
    /// Purging, forgetting, trimming, tidying.
    Cleanup,
    /// Comparing what is stored with what it should be.
    Reconcile,
}

impl TimerLoop {
    /// Every loop.
    pub const ALL: [Self; 3] = [Self::Due, Self::Cleanup, Self::Reconcile];

    /// The name in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Cleanup => "cleanup",
            Self::Reconcile => "reconcile",
        }
    }
}

/// How one loop is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopHealth {
    /// When it last came to the end of a pass, by the store's time.
    pub last_pass: Option<TimestampMs>,
    /// How often it was started again after a panic or an error.
    pub restarts: u64,
    /// Whether it is down: it ended and is to be started again.
    pub is_down: bool,
    /// Why it ended the last time.
    pub last_error: Option<String>,
}

/// How the timers of a process are doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerHealth {
    /// Work that somebody waits for.
    pub due: LoopHealth,
    /// Purging, forgetting, trimming, tidying.
    pub cleanup: LoopHealth,
    /// Comparing what is stored with what it should be.
    pub reconcile: LoopHealth,
    /// How late the latest item of the last pass that handled any was.
    pub lateness_ms: u64,
    /// Items that this process handled.
    pub handled: u64,
    /// Items that somebody else had done when this process came to them.
    pub elsewhere: u64,
    /// How often the loop of due work woke.
    pub wakeups: u64,
    /// Items that failed and are tried again.
    pub failing: usize,
    /// The worst of them.
    pub worst: Vec<FailingItem>,
}

impl TimerHealth {
    /// Whether any loop is down.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        self.due.is_down || self.cleanup.is_down || self.reconcile.is_down
    }

    /// How often a loop was started again.
    #[must_use]
    pub const fn restarts(&self) -> u64 {
        self.due.restarts + self.cleanup.restarts + self.reconcile.restarts
    }

    /// How a loop is doing.
    #[must_use]
    pub const fn of(&self, which: TimerLoop) -> &LoopHealth {
        match which {
            TimerLoop::Due => &self.due,
            TimerLoop::Cleanup => &self.cleanup,
            TimerLoop::Reconcile => &self.reconcile,
        }
    }

    fn of_mut(&mut self, which: TimerLoop) -> &mut LoopHealth {
        match which {
            TimerLoop::Due => &mut self.due,
            TimerLoop::Cleanup => &mut self.cleanup,
            TimerLoop::Reconcile => &mut self.reconcile,
        }
    }

    pub(super) fn name_failing(&mut self, mut items: Vec<FailingItem>) {
        self.failing = items.len();
        items.truncate(NAMED_MAX);
        self.worst = items;
    }
}

/// Where the loops write down how they are doing.
#[derive(Debug, Default)]
pub(super) struct Board {
    health: Mutex<TimerHealth>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, TimerHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self) -> TimerHealth {
        self.lock().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut TimerHealth)) {
        change(&mut self.lock());
    }

    pub(super) fn passed(&self, which: TimerLoop, at: TimestampMs) {
        self.change(|health| health.of_mut(which).last_pass = Some(at));
    }

    pub(super) fn is_up(&self, which: TimerLoop) {
        self.change(|health| health.of_mut(which).is_down = false);
    }

    pub(super) fn is_down(&self, which: TimerLoop, why: &str) {
        self.change(|health| {
            let health = health.of_mut(which);
            health.is_down = true;
            health.restarts += 1;
            health.last_error = Some(why.to_owned());
        });
    }
}
