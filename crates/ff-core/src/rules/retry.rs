//! Whether a failed attempt is followed by another, and when.

use crate::fault::{Fault, is_on};
use crate::policy::{BackoffStrategy, ReclaimBackoff, RetryPolicy};
use crate::words::words;

words! {
    /// What kind of failure ended an attempt.
    pub enum FailureClass {
        /// May pass by itself.
        Transient = "transient",
        /// Repeating cannot help.
        Permanent = "permanent",
        /// The worker or its machine broke.
        InfraCrash = "infra_crash",
        /// The attempt took too long.
        Timeout = "timeout",
        /// The work was called off.
        Cancelled = "cancelled",
    }
}

impl FailureClass {
    /// The class a category stands for; a category of the caller's own counts as transient.
    #[must_use]
    pub fn of_category(category: &str) -> Self {
        category.parse().unwrap_or(Self::Transient)
    }

    /// Whether such a failure may be retried at all.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        !matches!(self, Self::Permanent | Self::Cancelled)
    }
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Another attempt.
    Retry {
        /// After this pause.
        delay_ms: u64,
    },
    /// Nothing.
    Terminal,
}

/// A failure, as the decision sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure<'a> {
    /// Its class.
    pub class: FailureClass,
    /// Its category: the class's word, or one of the caller's own.
    pub category: &'a str,
    /// Retries consumed before.
    pub retry_count: u32,
    /// A uniform random number from 0 to 1, for jitter.
    pub uniform: f64,
}

/// What follows: a retry needs a retryable class, a policy, a retry left and an admitted category.
#[must_use]
pub fn decide(failure: Failure<'_>, policy: Option<&RetryPolicy>) -> RetryDecision {
    let Some(policy) = policy.filter(|_| failure.class.is_retryable() || is_on(Fault::PermanentRetried)) else {
        return RetryDecision::Terminal;
    };
    let admitted = policy.retryable_categories.is_empty()
        || policy.retryable_categories.iter().any(|category| category == failure.category);
    let exhausted = failure.retry_count >= policy.max_retries && !is_on(Fault::RetryCountIgnored);
    if exhausted || !admitted {
        return RetryDecision::Terminal;
    }
    RetryDecision::Retry { delay_ms: backoff_ms(&policy.backoff, failure.retry_count, failure.uniform) }
}

/// What follows an attempt that ran out of time: the same decision, for the class and category `timeout`.
#[must_use]
pub fn decide_timeout(policy: Option<&RetryPolicy>, retry_count: u32, uniform: f64) -> RetryDecision {
    let class = FailureClass::Timeout;
    decide(Failure { class, category: class.as_str(), retry_count, uniform }, policy)
}

/// The pause before the next retry, in whole milliseconds. Jitter shortens it by a factor between one half and one.
#[must_use]
pub fn backoff_ms(backoff: &BackoffStrategy, retry_count: u32, uniform: f64) -> u64 {
    match *backoff {
        BackoffStrategy::Fixed { delay_ms } => delay_ms,
        BackoffStrategy::Exponential { initial_delay_ms, max_delay_ms, multiplier, jitter } => {
            let exponent = i32::try_from(retry_count).unwrap_or(i32::MAX);
            let grown = initial_delay_ms as f64 * multiplier.powi(exponent);
            let delay = grown.min(max_delay_ms as f64);
            let factor = if jitter { 0.5 + 0.5 * uniform.clamp(0.0, 1.0) } else { 1.0 };
            // Conversion saturates; a product without a value counts as zero.
            ((delay * factor).round() as u64).min(max_delay_ms)
        }
    }
}

/// The pause before an execution that lost its lease is handed out again: none the first time, then the initial
/// delay, doubling with each further consecutive reclaim up to the longest.
#[must_use]
pub fn reclaim_delay_ms(backoff: ReclaimBackoff, reclaims_before: u32) -> u64 {
    match reclaims_before.checked_sub(1) {
        None => 0,
        Some(doublings) => {
            let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
            backoff.initial_delay_ms.saturating_mul(factor).min(backoff.max_delay_ms)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failure(class: FailureClass, retry_count: u32) -> Failure<'static> {
        Failure { class, category: class.as_str(), retry_count, uniform: 0.5 }
    }

    fn exponential(multiplier: f64, jitter: bool) -> BackoffStrategy {
        BackoffStrategy::Exponential { initial_delay_ms: 1000, max_delay_ms: 60_000, multiplier, jitter }
    }

    #[test]
    fn without_a_policy_nothing_is_retried() {
        for class in FailureClass::ALL {
            assert_eq!(decide(failure(*class, 0), None), RetryDecision::Terminal);
        }
    }

    #[test]
    fn permanent_and_cancelled_are_never_retried_the_others_are() {
        let policy = RetryPolicy::default();
        for class in FailureClass::ALL {
            let retried = decide(failure(*class, 0), Some(&policy)) == RetryDecision::Retry { delay_ms: 1000 };
            assert_eq!(retried, !matches!(class, FailureClass::Permanent | FailureClass::Cancelled), "{class}");
        }
    }

    #[test]
    fn retries_run_out() {
        let policy = RetryPolicy::default();
        let decided = |count| decide(failure(FailureClass::Transient, count), Some(&policy));
        assert_eq!(decided(2), RetryDecision::Retry { delay_ms: 4000 });
        assert_eq!(decided(3), RetryDecision::Terminal);
        let none = RetryPolicy { max_retries: 0, ..RetryPolicy::default() };
        assert_eq!(decide(failure(FailureClass::Transient, 0), Some(&none)), RetryDecision::Terminal);
    }

    #[test]
    fn categories_admit_by_name() {
        let policy =
            RetryPolicy { retryable_categories: vec!["timeout".into(), "rate".into()], ..RetryPolicy::default() };
        let decided = |class, category| {
            decide(Failure { category, ..failure(class, 0) }, Some(&policy)) != RetryDecision::Terminal
        };
        assert!(decided(FailureClass::Timeout, "timeout"));
        assert!(decided(FailureClass::Transient, "rate"));
        assert!(!decided(FailureClass::Transient, "transient"));
        assert!(!decided(FailureClass::Permanent, "rate"));
    }

    #[test]
    fn a_timeout_follows_the_same_decision() {
        let policy = RetryPolicy::default();
        assert_eq!(decide_timeout(Some(&policy), 0, 0.0), RetryDecision::Retry { delay_ms: 1000 });
        assert_eq!(decide_timeout(Some(&policy), 3, 0.0), RetryDecision::Terminal);
        assert_eq!(decide_timeout(None, 0, 0.0), RetryDecision::Terminal);
        let others = RetryPolicy { retryable_categories: vec!["transient".into()], ..policy };
        assert_eq!(decide_timeout(Some(&others), 0, 0.0), RetryDecision::Terminal);
    }

    #[test]
    fn a_category_of_the_callers_own_counts_as_transient() {
        assert_eq!(FailureClass::of_category("permanent"), FailureClass::Permanent);
        assert_eq!(FailureClass::of_category("rate_limited_upstream"), FailureClass::Transient);
        assert_eq!(FailureClass::of_category(""), FailureClass::Transient);
    }

    #[test]
    fn the_default_backoff_doubles_to_a_minute() {
        let delays: Vec<u64> = (0..8).map(|n| backoff_ms(&BackoffStrategy::default(), n, 0.0)).collect();
        assert_eq!(delays, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(backoff_ms(&BackoffStrategy::default(), u32::MAX, 0.0), 60_000);
    }

    #[test]
    fn a_fixed_backoff_stays() {
        let fixed = BackoffStrategy::Fixed { delay_ms: 7 };
        assert_eq!((backoff_ms(&fixed, 0, 0.0), backoff_ms(&fixed, 99, 1.0)), (7, 7));
    }

    #[test]
    fn jitter_is_between_one_half_and_one() {
        let jittered = exponential(2.0, true);
        assert_eq!(backoff_ms(&jittered, 0, 0.0), 500);
        assert_eq!(backoff_ms(&jittered, 0, 0.5), 750);
        assert_eq!(backoff_ms(&jittered, 0, 1.0), 1000);
        assert_eq!(backoff_ms(&jittered, 20, 1.0), 60_000);
        assert_eq!(backoff_ms(&exponential(2.0, false), 0, 0.0), 1000);
    }

    #[test]
    fn a_delay_is_rounded_to_whole_milliseconds() {
        let odd =
            BackoffStrategy::Exponential { initial_delay_ms: 3, max_delay_ms: 100, multiplier: 1.5, jitter: false };
        assert_eq!((backoff_ms(&odd, 1, 0.0), backoff_ms(&odd, 2, 0.0)), (5, 7));
    }

    #[test]
    fn the_first_reclaim_is_immediate_and_the_next_ones_wait() {
        let delays: Vec<u64> = (0..9).map(|n| reclaim_delay_ms(ReclaimBackoff::default(), n)).collect();
        assert_eq!(delays, [0, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(reclaim_delay_ms(ReclaimBackoff::default(), u32::MAX), 60_000);
        let none = ReclaimBackoff { initial_delay_ms: 0, max_delay_ms: 10 };
        assert_eq!(reclaim_delay_ms(none, 200), 0);
    }

    proptest! {
        #[test]
        fn a_delay_never_exceeds_its_limit(
            initial: u64, max: u64, multiplier: f64, jitter: bool, count: u32, uniform: f64,
        ) {
            let backoff = BackoffStrategy::Exponential {
                initial_delay_ms: initial, max_delay_ms: max, multiplier, jitter,
            };
            prop_assert!(backoff_ms(&backoff, count, uniform) <= max);
        }

        #[test]
        fn without_jitter_a_delay_never_shrinks(count in 0u32..1000, multiplier in 1.0f64..8.0) {
            let backoff = exponential(multiplier, false);
            prop_assert!(backoff_ms(&backoff, count, 0.0) <= backoff_ms(&backoff, count + 1, 0.0));
        }

        #[test]
        fn reclaim_delays_grow_up_to_their_limit(initial: u64, max: u64, n in 0u32..200) {
            let backoff = ReclaimBackoff { initial_delay_ms: initial, max_delay_ms: max };
            prop_assert!(reclaim_delay_ms(backoff, n) <= reclaim_delay_ms(backoff, n + 1));
            prop_assert!(reclaim_delay_ms(backoff, n) <= max);
        }
    }
}
