//! Arithmetic of quotas: whether an execution is admitted, and when a denied one may ask again.

use super::budgets::{check_amount, read_scope};
use crate::TimestampMs;
use crate::backend::budgets::BudgetScope;
use crate::backend::quotas::{CheckAdmissionArgs, CheckAdmissionResult, CreateQuotaPolicyArgs, QuotaPolicyLimits};
use crate::error::{EngineError, Result, ValidationKind};
use crate::fault::{Fault, is_on};
use crate::ids::check_free_string;

/// The window of a definition that names none.
pub const WINDOW_SECONDS_DEFAULT: u64 = 60;

/// The dimension of a caller that names none.
pub const DIMENSION_DEFAULT: &str = "default";

/// The dimension whose window a call uses.
///
/// # Errors
/// `InvalidInput` for a name that is too long or has control characters.
pub fn dimension_name(dimension: &str) -> Result<&str> {
    check_free_string("dimension", dimension)?;
    Ok(if dimension.is_empty() { DIMENSION_DEFAULT } else { dimension })
}

/// Checks a create request and gives its scope.
///
/// # Errors
/// In order: `InvalidInput` for numbers beyond what stores hold; `InvalidQuotaSpec` for a rate without a window, or a
/// scope whose type is unknown or whose id does not fit.
pub fn check_create(args: &CreateQuotaPolicyArgs) -> Result<BudgetScope> {
    window_ms(args.window_seconds)?;
    check_amount("max_requests_per_window", args.max_requests_per_window)?;
    check_amount("max_concurrent", args.max_concurrent)?;
    check_amount("jitter_ms", args.jitter_ms)?;
    let refuse = |detail: String| EngineError::validation(ValidationKind::InvalidQuotaSpec, detail);
    if args.window_seconds == 0 && args.max_requests_per_window > 0 {
        return Err(refuse("max_requests_per_window needs window_seconds".to_owned()));
    }
    read_scope(&args.namespace, &args.scope_type, &args.scope_id).map_err(refuse)
}

fn window_ms(window_seconds: u64) -> Result<u64> {
    let window_ms = window_seconds.saturating_mul(1_000);
    check_amount("window_seconds", window_ms)?;
    Ok(window_ms)
}

/// The limits one admission applies; 0 disables a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct AdmissionLimits {
    /// Length of the sliding window.
    #[cfg_attr(test, proptest(strategy = "1..100_000u64"))]
    pub window_ms: u64,
    /// Admissions per window.
    #[cfg_attr(test, proptest(strategy = "0..5u64"))]
    pub rate_limit: u64,
    /// Executions at once.
    #[cfg_attr(test, proptest(strategy = "0..5u64"))]
    pub concurrency_cap: u64,
    /// Most random milliseconds added to a retry time.
    #[cfg_attr(test, proptest(strategy = "0..1_000u64"))]
    pub jitter_ms: u64,
}

impl AdmissionLimits {
    /// The limits a caller brings.
    ///
    /// # Errors
    /// `InvalidInput` for numbers beyond what stores hold, or a rate without a window.
    pub fn from_args(args: &CheckAdmissionArgs) -> Result<Self> {
        let limits = Self {
            window_ms: window_ms(args.window_seconds)?,
            rate_limit: args.rate_limit,
            concurrency_cap: args.concurrency_cap,
            jitter_ms: args.jitter_ms.unwrap_or(0),
        };
        check_amount("rate_limit", limits.rate_limit)?;
        check_amount("concurrency_cap", limits.concurrency_cap)?;
        check_amount("jitter_ms", limits.jitter_ms)?;
        if limits.window_ms == 0 && limits.rate_limit > 0 {
            return Err(EngineError::invalid("rate_limit needs window_seconds"));
        }
        Ok(limits)
    }

    /// The limits of a stored definition; `None` when it bounds nothing.
    #[must_use]
    pub const fn from_definition(definition: &QuotaPolicyLimits) -> Option<Self> {
        if definition.is_unlimited() {
            return None;
        }
        let window_seconds = match definition.requests_per_window_seconds {
            0 => WINDOW_SECONDS_DEFAULT,
            given => given,
        };
        Some(Self {
            window_ms: window_seconds.saturating_mul(1_000),
            rate_limit: definition.max_requests_per_window,
            concurrency_cap: definition.active_concurrency_cap,
            jitter_ms: definition.jitter_ms,
        })
    }

    /// Entries at or before this time have left the window.
    #[must_use]
    pub fn window_floor(&self, now: TimestampMs) -> TimestampMs {
        TimestampMs(now.0.saturating_sub_unsigned(self.window_ms))
    }
}

/// What is stored about one policy and dimension when an execution asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct AdmissionFacts {
    /// Whether the execution holds a slot or a provisional admission.
    pub holds: bool,
    /// Entries after the window floor.
    #[cfg_attr(test, proptest(strategy = "0..8u64"))]
    pub in_window: u64,
    /// The oldest of them.
    pub oldest_at: Option<TimestampMs>,
    /// Executions that hold a slot.
    #[cfg_attr(test, proptest(strategy = "0..8u64"))]
    pub holders: u64,
}

/// Decides an admission: a live one stands, then the rate speaks, then the cap.
///
/// `sample` is any random number; the retry time gets `sample` modulo the jitter range on top.
#[must_use]
pub fn admit(limits: &AdmissionLimits, facts: &AdmissionFacts, now: TimestampMs, sample: u64) -> CheckAdmissionResult {
    if facts.holds {
        CheckAdmissionResult::AlreadyAdmitted
    } else if limits.rate_limit > 0 && facts.in_window >= limits.rate_limit && !is_on(Fault::RateLimitIgnored) {
        let wait_ms = facts.oldest_at.map_or(limits.window_ms, |oldest| oldest.plus(limits.window_ms).since(now));
        let jitter_ms = sample % limits.jitter_ms.saturating_add(1);
        CheckAdmissionResult::RateExceeded { retry_after_ms: wait_ms.saturating_add(jitter_ms) }
    } else if limits.concurrency_cap > 0 && facts.holders >= limits.concurrency_cap {
        CheckAdmissionResult::ConcurrencyExceeded
    } else {
        CheckAdmissionResult::Admitted
    }
}

/// How many more executions would be admitted now; `None` when nothing bounds them.
#[must_use]
pub fn free_slots(limits: &AdmissionLimits, facts: &AdmissionFacts) -> Option<u64> {
    let bound = |limit: u64, taken: u64| (limit > 0).then(|| limit.saturating_sub(taken));
    let (rate, cap) = (bound(limits.rate_limit, facts.in_window), bound(limits.concurrency_cap, facts.holders));
    rate.into_iter().chain(cap).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ExecutionId, Namespace, QuotaPolicyId};
    use proptest::prelude::*;
    use uuid::Uuid;

    const NOW: TimestampMs = TimestampMs(1_000_000);

    const LIMITS: AdmissionLimits =
        AdmissionLimits { window_ms: 60_000, rate_limit: 2, concurrency_cap: 3, jitter_ms: 0 };

    fn create() -> CreateQuotaPolicyArgs {
        CreateQuotaPolicyArgs {
            quota_policy_id: QuotaPolicyId::from_uuid(Uuid::nil()),
            namespace: Namespace::new("acme").unwrap(),
            scope_type: "policy".into(),
            scope_id: String::new(),
            window_seconds: 60,
            max_requests_per_window: 5,
            max_concurrent: 0,
            jitter_ms: 0,
        }
    }

    #[test]
    fn a_rate_needs_a_window_and_a_scope_must_make_sense() {
        let code = |args| check_create(&args).map_or_else(|error| error.code(), |_| "created");
        assert_eq!(code(create()), "created");
        assert_eq!(code(CreateQuotaPolicyArgs { window_seconds: 0, ..create() }), "invalid_quota_spec");
        let cap_alone =
            CreateQuotaPolicyArgs { window_seconds: 0, max_requests_per_window: 0, max_concurrent: 1, ..create() };
        assert_eq!(code(cap_alone), "created");
        assert_eq!(code(CreateQuotaPolicyArgs { scope_type: String::new(), ..create() }), "invalid_quota_spec");
        assert_eq!(code(CreateQuotaPolicyArgs { scope_type: "lane".into(), ..create() }), "invalid_quota_spec");
        assert_eq!(code(CreateQuotaPolicyArgs { window_seconds: u64::MAX / 1_000, ..create() }), "invalid_input");
        assert_eq!(code(CreateQuotaPolicyArgs { jitter_ms: u64::MAX, ..create() }), "invalid_input");
        let lane =
            check_create(&CreateQuotaPolicyArgs { scope_type: "lane".into(), scope_id: "gpu".into(), ..create() });
        assert_eq!(lane.unwrap().scope_id(), "gpu");
    }

    #[test]
    fn limits_a_caller_brings_are_checked() {
        let args = CheckAdmissionArgs {
            execution_id: ExecutionId::new(0, Uuid::nil()),
            window_seconds: 60,
            rate_limit: 2,
            concurrency_cap: 3,
            jitter_ms: None,
        };
        assert_eq!(AdmissionLimits::from_args(&args).unwrap(), LIMITS);
        for bad in [
            CheckAdmissionArgs { window_seconds: 0, ..args },
            CheckAdmissionArgs { window_seconds: u64::MAX, ..args },
            CheckAdmissionArgs { rate_limit: u64::MAX, ..args },
            CheckAdmissionArgs { concurrency_cap: 1 << 63, ..args },
            CheckAdmissionArgs { jitter_ms: Some(u64::MAX), ..args },
        ] {
            assert_eq!(AdmissionLimits::from_args(&bad).unwrap_err().code(), "invalid_input");
        }
    }

    #[test]
    fn a_definition_without_window_uses_a_minute() {
        let definition =
            QuotaPolicyLimits { max_requests_per_window: 2, active_concurrency_cap: 3, ..Default::default() };
        assert_eq!(AdmissionLimits::from_definition(&definition), Some(LIMITS));
        assert_eq!(AdmissionLimits::from_definition(&QuotaPolicyLimits::default()), None);
    }

    #[test]
    fn an_empty_dimension_is_the_default_one() {
        assert_eq!(dimension_name("").unwrap(), "default");
        assert_eq!(dimension_name("tokens").unwrap(), "tokens");
        assert_eq!(dimension_name("\0").unwrap_err().code(), "invalid_input");
    }

    #[test]
    fn a_live_admission_stands_even_when_everything_is_full() {
        let facts = AdmissionFacts { holds: true, in_window: 9, oldest_at: Some(NOW), holders: 9 };
        assert_eq!(admit(&LIMITS, &facts, NOW, 0), CheckAdmissionResult::AlreadyAdmitted);
    }

    #[test]
    fn a_full_window_is_told_before_a_full_cap_with_the_time_its_oldest_entry_leaves() {
        let oldest_at = Some(TimestampMs(NOW.0 - 50_000));
        let facts = AdmissionFacts { holds: false, in_window: 2, oldest_at, holders: 3 };
        assert_eq!(admit(&LIMITS, &facts, NOW, 77), CheckAdmissionResult::RateExceeded { retry_after_ms: 10_000 });
        let below = AdmissionFacts { in_window: 1, ..facts };
        assert_eq!(admit(&LIMITS, &below, NOW, 0), CheckAdmissionResult::ConcurrencyExceeded);
        let free = AdmissionFacts { holders: 2, ..below };
        assert_eq!(admit(&LIMITS, &free, NOW, 0), CheckAdmissionResult::Admitted);
    }

    #[test]
    fn zero_disables_a_bound() {
        let limits = AdmissionLimits { rate_limit: 0, concurrency_cap: 0, ..LIMITS };
        let facts = AdmissionFacts { holds: false, in_window: 9, oldest_at: Some(NOW), holders: 9 };
        assert_eq!(admit(&limits, &facts, NOW, 0), CheckAdmissionResult::Admitted);
        assert_eq!(free_slots(&limits, &facts), None);
    }

    #[test]
    fn an_entry_at_the_floor_has_left_the_window() {
        assert_eq!(LIMITS.window_floor(NOW), TimestampMs(NOW.0 - 60_000));
        let facts = AdmissionFacts { in_window: 2, oldest_at: Some(LIMITS.window_floor(NOW)), ..Default::default() };
        assert_eq!(admit(&LIMITS, &facts, NOW, 0), CheckAdmissionResult::RateExceeded { retry_after_ms: 0 });
        let endless = AdmissionLimits { window_ms: u64::MAX, ..LIMITS };
        assert_eq!(endless.window_floor(NOW), TimestampMs(i64::MIN));
    }

    proptest! {
        #[test]
        fn a_denied_execution_waits_at_most_a_window_and_the_jitter(
            limits: AdmissionLimits, facts: AdmissionFacts, age in 0..100_000i64, sample: u64,
        ) {
            let facts = AdmissionFacts { oldest_at: Some(TimestampMs(NOW.0 - age)), ..facts };
            if let CheckAdmissionResult::RateExceeded { retry_after_ms } = admit(&limits, &facts, NOW, sample) {
                prop_assert!(retry_after_ms <= limits.window_ms + limits.jitter_ms);
                let least = limits.window_ms.saturating_sub(age.unsigned_abs());
                prop_assert!(retry_after_ms >= least);
            }
        }

        #[test]
        fn a_newcomer_is_admitted_exactly_while_slots_are_free(limits: AdmissionLimits, facts: AdmissionFacts) {
            let facts = AdmissionFacts { holds: false, ..facts };
            let admitted = admit(&limits, &facts, NOW, 0).is_admitted();
            prop_assert_eq!(admitted, free_slots(&limits, &facts) != Some(0));
        }

        #[test]
        fn admissions_never_exceed_rate_and_cap(
            limits: AdmissionLimits,
            gaps in proptest::collection::vec(0..30_000i64, 0..40),
        ) {
            let (mut now, mut window, mut holders) = (NOW, Vec::new(), 0u64);
            for gap in gaps {
                now = TimestampMs(now.0 + gap);
                window.retain(|at| *at > limits.window_floor(now));
                let in_window = u64::try_from(window.len()).unwrap();
                let facts = AdmissionFacts { holds: false, in_window, oldest_at: window.first().copied(), holders };
                match admit(&limits, &facts, now, 0) {
                    CheckAdmissionResult::Admitted => {
                        window.push(now);
                        holders += 1;
                    }
                    _ => holders = holders.saturating_sub(1),
                }
                prop_assert!(limits.rate_limit == 0 || u64::try_from(window.len()).unwrap() <= limits.rate_limit);
                prop_assert!(limits.concurrency_cap == 0 || holders <= limits.concurrency_cap);
            }
        }
    }
}
