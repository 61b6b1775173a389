//! Time has one door.

mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ff_core::TimestampMs;
use ff_core::backend::layer::BoxFuture;
use tokio::sync::oneshot;

pub use server::StoreClock;

/// Where a store takes its time from.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> TimestampMs;

    /// Ends when `now` has reached `at`.
    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()>;
}

/// The clock of the machine, never backwards.
#[derive(Debug, Default)]
pub struct SystemClock {
    latest: Mutex<i64>,
}

impl Clock for SystemClock {
    fn now(&self) -> TimestampMs {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = ms.max(*latest);
        TimestampMs(*latest)
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        let wait = Duration::from_millis(at.since(self.now()));
        Box::pin(tokio::time::sleep(wait))
    }
}

/// A clock that moves only when told to.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    inner: Arc<Mutex<ManualTime>>,
}

#[derive(Debug, Default)]
struct ManualTime {
    now: i64,
    sleepers: BTreeMap<i64, Vec<oneshot::Sender<()>>>,
}

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn at(now: TimestampMs) -> Self {
        let clock = Self::default();
        clock.set(now);
        clock
    }

    /// Moves forward and wakes those whose time has come.
    pub fn advance(&self, ms: u64) {
        let now = self.now().plus(ms);
        self.set(now);
    }

    /// Shows another time, earlier ones included: a store must cope with clocks that step back.
    pub fn set(&self, now: TimestampMs) {
        let mut time = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        time.now = now.0;
        let later = time.sleepers.split_off(&(now.0 + 1));
        for sleeper in std::mem::replace(&mut time.sleepers, later).into_values().flatten() {
            // A sleeper that gave up no longer listens.
            let _ = sleeper.send(());
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> TimestampMs {
        TimestampMs(self.inner.lock().unwrap_or_else(PoisonError::into_inner).now)
    }

    fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        let mut time = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if at.0 <= time.now {
            return Box::pin(std::future::ready(()));
        }
        let (wake, woken) = oneshot::channel();
        time.sleepers.entry(at.0).or_default().push(wake);
        Box::pin(async move {
            // The sender lives as long as the clock; without a clock nothing waits any more.
            let _ = woken.await;
        })
    }
}
