//! When others look next at what is due, as far as they were told of it.
//!
//! News travel apart from the commit, and die with a process that is killed in between: others would look only with the next sweep, half a minute
//! later. For what comes due that is too late. A lease is there to run out when its worker dies, and whoever dies right after it claimed would
//! be missed for all that time. So a commit that makes something due tells it itself, unless others look soon enough anyway: whoever looks
//! learns what comes next. That is hardly ever, however many leases there are.

use ff_core::TimestampMs;

/// How much later than needed others may look, should nobody tell them more precisely. So a commit tells once in that time at most.
const SLACK_MS: u64 = 100;

/// Times that others were told of; the earliest comes last.
#[derive(Debug, Default)]
pub(super) struct Alarms(Vec<TimestampMs>);

impl Alarms {
    /// The time that others must be told of, so that something due at a time is not missed; none if they look soon enough.
    pub(super) fn needed(&mut self, due_at: TimestampMs, now: TimestampMs) -> Option<TimestampMs> {
        while self.0.pop_if(|told| *told <= now).is_some() {}
        let latest = due_at.max(now).plus(SLACK_MS);
        self.0.last().is_none_or(|told| *told > latest).then_some(latest)
    }

    /// Others were told.
    pub(super) fn told(&mut self, at: TimestampMs) {
        if self.0.last().is_none_or(|told| *told > at) {
            self.0.push(at);
        }
    }

    /// Somebody came who was told nothing.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> TimestampMs {
        TimestampMs(ms)
    }

    /// Whether a commit at `now` had to tell of something due later; it does.
    fn tells(alarms: &mut Alarms, due_at: i64, now: i64) -> bool {
        let needed = alarms.needed(at(due_at), at(now));
        needed.into_iter().for_each(|time| alarms.told(time));
        needed.is_some()
    }

    #[test]
    fn what_is_due_later_than_others_look_need_not_be_told() {
        let mut alarms = Alarms::default();
        assert!(tells(&mut alarms, 1_000, 0));
        assert!(!tells(&mut alarms, 1_000, 1), "the same time");
        assert!(!tells(&mut alarms, 30_000, 2), "who looks then learns of it");
        assert!(tells(&mut alarms, 500, 3), "others would look too late");
        assert!(!tells(&mut alarms, 1_000, 600 + 3), "the first one still stands");
        assert!(tells(&mut alarms, 30_000, 1_000 + 100), "nobody looks any more");
    }

    #[test]
    fn whatever_comes_due_at_once_is_told_once_in_a_while() {
        let mut alarms = Alarms::default();
        let told = (0..1_000).filter(|now| tells(&mut alarms, now + 1, *now)).count();
        assert!((5..=11).contains(&told), "{told} times in a second");
    }

    #[test]
    fn what_was_due_long_ago_is_told_as_due_now() {
        assert_eq!(Alarms::default().needed(at(0), at(5_000)), Some(at(5_000).plus(SLACK_MS)));
    }

    #[test]
    fn who_comes_later_has_been_told_nothing() {
        let mut alarms = Alarms::default();
        assert!(tells(&mut alarms, 1_000, 0));
        alarms.forget();
        assert!(tells(&mut alarms, 2_000, 0));
    }
}
