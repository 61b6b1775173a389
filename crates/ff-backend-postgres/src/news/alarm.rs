//! Alarms: at which times others look at what is due because they were told to.
//!
//! News travel apart from the commit, and die with a process that is killed in between: others would look only with the next sweep, half a minute
//! later. For what comes due that is too late. A lease is there to run out when its worker dies, and whoever dies right after it claimed would
//! be missed for all that time. So a commit that makes something due sets an alarm, which is a part of it, unless others have one already that rings
//! soon enough: whoever looks learns what comes next. That is hardly ever, however many leases there are.
//!
//! An alarm rings whatever else the others have looked at before, because whoever set it counts on that.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ff_core::TimestampMs;
use ff_engine::clock::StoreClock;
use tokio::sync::Notify;

/// How much later than needed an alarm may ring; news that travel apart are more precise.
const SLACK_MS: u64 = 100;

/// How long before its time an alarm is no longer counted on: it might ring before a commit is there to be seen.
const MARGIN_MS: u64 = 50;

/// Alarms that this process has set at others; the earliest comes last.
#[derive(Debug, Default)]
pub(super) struct Alarms(Vec<TimestampMs>);

impl Alarms {
    /// The alarm that must be set so that something due at a time is not missed; none if another one will do.
    pub(super) fn needed(&mut self, due_at: TimestampMs, now: TimestampMs) -> Option<TimestampMs> {
        while self.0.pop_if(|set| *set <= now.plus(MARGIN_MS)).is_some() {}
        let latest = due_at.max(now).plus(SLACK_MS);
        self.0.last().is_none_or(|set| *set > latest).then_some(latest)
    }

    /// One was set.
    pub(super) fn add(&mut self, at: TimestampMs) {
        if self.0.last().is_none_or(|set| *set > at) {
            self.0.push(at);
        }
    }

    /// Somebody came, or may have come, at whom none is set.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

/// Alarms that others have set here.
#[derive(Debug, Default)]
pub(super) struct AlarmClock {
    times: Mutex<BTreeSet<TimestampMs>>,
    earlier: Notify,
}

impl AlarmClock {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<TimestampMs>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, at: TimestampMs) {
        let mut times = self.lock();
        times.insert(at);
        if times.first() == Some(&at) {
            self.earlier.notify_one();
        }
    }

    /// Ends when the next one rings, and tells its time.
    pub(super) async fn ring(&self, clock: &StoreClock) -> TimestampMs {
        loop {
            let first = self.lock().first().copied();
            let Some(at) = first else {
                self.earlier.notified().await;
                continue;
            };
            tokio::select! {
                () = clock.sleep_until(at) => {
                    self.lock().remove(&at);
                    return at;
                }
                () = self.earlier.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_engine::clock::{Clock, ManualClock};
    use futures_util::FutureExt;

    use super::*;

    fn at(ms: i64) -> TimestampMs {
        TimestampMs(ms)
    }

    /// Whether a commit at `now` had to set an alarm for something due later; it does.
    fn sets(alarms: &mut Alarms, due_at: i64, now: i64) -> bool {
        let needed = alarms.needed(at(due_at), at(now));
        needed.into_iter().for_each(|time| alarms.add(time));
        needed.is_some()
    }

    #[test]
    fn what_is_due_later_than_others_look_needs_no_alarm() {
        let mut alarms = Alarms::default();
        assert!(sets(&mut alarms, 1_000, 0));
        assert!(!sets(&mut alarms, 1_000, 1), "the same time");
        assert!(!sets(&mut alarms, 30_000, 2), "who looks then learns of it");
        assert!(sets(&mut alarms, 500, 3), "others would look too late");
        assert!(!sets(&mut alarms, 1_000, 600), "the first one still stands");
        assert!(sets(&mut alarms, 30_000, 1_050), "it may ring before the commit is there");
    }

    #[test]
    fn whatever_comes_due_at_once_needs_an_alarm_once_in_a_while() {
        let mut alarms = Alarms::default();
        let set = (0..1_000).filter(|now| sets(&mut alarms, now + 1, *now)).count();
        assert!((10..=20).contains(&set), "{set} times in a second");
    }

    #[test]
    fn what_was_due_long_ago_is_due_now() {
        assert_eq!(Alarms::default().needed(at(0), at(5_000)), Some(at(5_000).plus(SLACK_MS)));
    }

    #[test]
    fn who_comes_later_has_no_alarm() {
        let mut alarms = Alarms::default();
        assert!(sets(&mut alarms, 1_000, 0));
        alarms.forget();
        assert!(sets(&mut alarms, 2_000, 0));
    }

    #[tokio::test]
    async fn alarms_ring_at_their_times_in_any_order_of_setting() {
        let manual = Arc::new(ManualClock::at(at(0)));
        let time = StoreClock::new(Some(Arc::clone(&manual) as Arc<dyn Clock>), at(0));
        let clock = AlarmClock::default();
        clock.set(at(200));
        clock.set(at(100));
        let mut ringing = Box::pin(clock.ring(&time));
        assert!((&mut ringing).now_or_never().is_none());
        manual.set(at(150));
        assert_eq!(ringing.await, at(100));
        assert!(clock.ring(&time).now_or_never().is_none(), "it rings once");
        manual.set(at(200));
        assert_eq!(clock.ring(&time).await, at(200));
    }
}
