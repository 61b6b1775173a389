//! News of work that comes due earlier than somebody expects: what a sleeper needs, so that it wakes for nothing else.
//!
//! A store keeps one [`Alarms`], announces the earliest new entry of each commit, and hands out a [`DueNews`] to whoever asks.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::TimestampMs;
use tokio::sync::Notify;

use crate::index::{Entry, Index};

/// Before every time: something was added, and nobody knows when it is due.
pub const UNKNOWN: TimestampMs = TimestampMs(i64::MIN);

/// After every time: nothing was added.
const NEVER: TimestampMs = TimestampMs(i64::MAX);

/// From when on timers look at an entry; none if they do not wait for its kind.
#[must_use]
pub fn awaited_at(entry: &Entry) -> Option<TimestampMs> {
    match entry.index {
        Index::Due(kind) if !kind.is_cleanup() => Some(TimestampMs(entry.position.major).plus(kind.grace_ms())),
        _ => None,
    }
}

/// Everybody who waits for due work.
#[derive(Debug, Default)]
pub struct Alarms {
    sleepers: Mutex<Sleepers>,
}

#[derive(Debug, Default)]
struct Sleepers {
    next: u64,
    all: HashMap<u64, Sleeper>,
}

#[derive(Debug)]
struct Sleeper {
    /// The earliest entry that was announced.
    earliest: TimestampMs,
    /// Wants to know of entries before this one.
    before: TimestampMs,
    woken: Arc<Notify>,
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// News from now on. `kept` lives as long as somebody listens.
    #[must_use]
    pub fn listen(self: &Arc<Self>, kept: impl Any + Send + Sync) -> DueNews {
        let woken = Arc::new(Notify::new());
        let mut sleepers = self.lock();
        let number = sleepers.next;
        sleepers.next += 1;
        sleepers.all.insert(number, Sleeper { earliest: NEVER, before: UNKNOWN, woken: Arc::clone(&woken) });
        drop(sleepers);
        DueNews { alarms: Arc::clone(self), number, woken, _kept: Box::new(kept) }
    }

    /// A commit added an entry that is due at this time, and none that is due earlier. To be called after it can be seen.
    pub fn announce(&self, at: TimestampMs) {
        for sleeper in self.lock().all.values_mut().filter(|sleeper| at < sleeper.earliest) {
            sleeper.earliest = at;
            if at < sleeper.before {
                sleeper.woken.notify_one();
            }
        }
    }
}

/// News of work that comes due; see [`Store::listen_due`](crate::store::Store::listen_due).
pub struct DueNews {
    alarms: Arc<Alarms>,
    number: u64,
    woken: Arc<Notify>,
    _kept: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for DueNews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DueNews").field("number", &self.number).finish_non_exhaustive()
    }
}

impl DueNews {
    /// Counts from now on.
    pub fn start_over(&mut self) {
        self.change(|sleeper| sleeper.earliest = NEVER);
    }

    /// Ends as soon as an entry that is due before `at` was added, and says when the earliest of them is due: no later than that, and
    /// [`UNKNOWN`] if it may be any time.
    pub async fn before(&mut self, at: TimestampMs) -> TimestampMs {
        loop {
            let earliest = self.change(|sleeper| {
                sleeper.before = at;
                sleeper.earliest
            });
            if earliest < at {
                return earliest;
            }
            self.woken.notified().await;
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Sleeper) -> T) -> T {
        let mut sleepers = self.alarms.lock();
        let fresh = || Sleeper { earliest: NEVER, before: UNKNOWN, woken: Arc::clone(&self.woken) };
        change(sleepers.all.entry(self.number).or_insert_with(fresh))
    }
}

impl Drop for DueNews {
    fn drop(&mut self) {
        self.alarms.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_an_earlier_entry_wakes() {
        let alarms = Arc::new(Alarms::default());
        let mut news = alarms.listen(());
        alarms.announce(TimestampMs(100));
        assert_eq!(news.before(TimestampMs(100)).now_or_never(), None);
        alarms.announce(TimestampMs(99));
        assert_eq!(news.before(TimestampMs(100)).now_or_never(), Some(TimestampMs(99)));
    }

    #[tokio::test]
    async fn nothing_is_missed_between_asking_and_waiting() {
        let alarms = Arc::new(Alarms::default());
        let mut news = alarms.listen(());
        alarms.announce(TimestampMs(7));
        alarms.announce(TimestampMs(9));
        assert_eq!(news.before(TimestampMs(50)).await, TimestampMs(7));
        news.start_over();
        assert_eq!(news.before(TimestampMs(50)).now_or_never(), None);
    }

    #[tokio::test]
    async fn a_sleeper_is_woken_by_what_nobody_knows() {
        let alarms = Arc::new(Alarms::default());
        let mut news = alarms.listen(());
        let sleeper = tokio::spawn(async move { news.before(TimestampMs(5)).await });
        tokio::task::yield_now().await;
        alarms.announce(TimestampMs(8));
        alarms.announce(UNKNOWN);
        assert_eq!(sleeper.await.unwrap(), UNKNOWN);
    }

    #[test]
    fn whoever_stops_listening_is_forgotten() {
        let alarms = Arc::new(Alarms::default());
        drop(alarms.listen(()));
        assert!(alarms.lock().all.is_empty());
    }
}
