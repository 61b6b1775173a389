//! How long calls took, and what that says about most of them.

use std::time::Duration;

use serde::Serialize;

/// Durations of calls, in no order.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Notes one call.
    pub fn note(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Notes calls that were answered together.
    pub fn note_many(&mut self, took: Duration, calls: usize) {
        self.0.extend(std::iter::repeat_n(took, calls));
    }

    /// Takes over what another caller noted.
    pub fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many calls were noted.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The middle and the slow end.
    pub fn percentiles(mut self) -> Percentiles {
        self.0.sort_unstable();
        Percentiles { p50_ms: self.at(0.50), p99_ms: self.at(0.99) }
    }

    /// The smallest duration that `share` of all calls did not exceed, in milliseconds; 0 without calls.
    fn at(&self, share: f64) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.max(1) - 1).map_or(0.0, |took| took.as_secs_f64() * 1e3)
    }
}

/// Half of the calls were faster than the first, one in a hundred was slower than the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Milliseconds.
    pub p50_ms: f64,
    /// Milliseconds.
    pub p99_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(milliseconds: impl IntoIterator<Item = u64>) -> Percentiles {
        let mut latencies = Latencies::default();
        milliseconds.into_iter().for_each(|ms| latencies.note(Duration::from_millis(ms)));
        latencies.percentiles()
    }

    #[test]
    fn percentiles_are_durations_that_occurred() {
        assert_eq!(of((1..=100).rev()), Percentiles { p50_ms: 50.0, p99_ms: 99.0 });
        assert_eq!(of([7]), Percentiles { p50_ms: 7.0, p99_ms: 7.0 });
        assert_eq!(of([1, 2, 1000]), Percentiles { p50_ms: 2.0, p99_ms: 1000.0 });
    }

    #[test]
    fn without_calls_there_is_nothing_to_tell() {
        assert_eq!(of([]), Percentiles::default());
    }

    #[test]
    fn calls_answered_together_count_each() {
        let mut latencies = Latencies::default();
        latencies.note_many(Duration::from_millis(2), 99);
        latencies.note(Duration::from_millis(9));

        assert_eq!(latencies.count(), 100);
        assert_eq!(latencies.percentiles(), Percentiles { p50_ms: 2.0, p99_ms: 2.0 });
    }
}
