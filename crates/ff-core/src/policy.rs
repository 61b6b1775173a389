//! How an execution wants to be treated. Frozen when it is created.

mod document;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capability::RequirementClass;
use crate::error::Result;
use crate::ids::{BudgetId, QuotaPolicyId};
use crate::words::words;

pub use document::PolicyDocument;
use document::{check_retry_shape, malformed};

/// Retries beyond the first attempt when a retry policy does not say.
pub const DEFAULT_MAX_RETRIES: u32 = 3;
/// First retry delay when a backoff does not say.
pub const DEFAULT_BACKOFF_INITIAL_MS: u64 = 1_000;
/// Longest retry delay when a backoff does not say.
pub const DEFAULT_BACKOFF_MAX_MS: u64 = 60_000;
/// Growth of the retry delay when a backoff does not say.
pub const DEFAULT_BACKOFF_MULTIPLIER: f64 = 2.0;
/// Reclaims allowed when neither the policy nor the caller says.
pub const DEFAULT_MAX_RECLAIM_COUNT: u32 = 1_000;
/// Replays allowed when the policy does not say.
pub const DEFAULT_MAX_REPLAY_COUNT: u32 = 10;
/// Signals taken when the policy does not say.
pub const DEFAULT_MAX_SIGNALS: u32 = 10_000;
/// How long an idempotency key is remembered when the policy does not say: 24 hours.
pub const DEFAULT_DEDUP_WINDOW_MS: u64 = 24 * 60 * 60 * 1000;
/// Frames kept of a stream when the policy does not say.
pub const DEFAULT_STREAM_MAXLEN: u64 = 10_000;

words! {
    /// What happens to a suspended execution when its time is over.
    #[derive(Default)]
    pub enum TimeoutBehavior {
        /// It fails.
        #[default]
        Fail = "fail",
        /// It is cancelled.
        Cancel = "cancel",
        /// It expires.
        Expire = "expire",
        /// It resumes and finds a synthetic timeout signal.
        AutoResumeWithTimeoutSignal = "auto_resume_with_timeout_signal",
        /// It stays suspended without a deadline and waits for a person.
        Escalate = "escalate",
    }
}

/// The time between retries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum BackoffStrategy {
    /// Always the same.
    Fixed {
        /// The delay.
        #[serde(default = "backoff_initial")]
        delay_ms: u64,
    },
    /// Growing with every retry.
    Exponential {
        /// Before the first retry.
        #[serde(default = "backoff_initial")]
        initial_delay_ms: u64,
        /// Never longer than this.
        #[serde(default = "backoff_max")]
        max_delay_ms: u64,
        /// Growth per retry; not negative.
        #[serde(default = "backoff_multiplier")]
        #[cfg_attr(test, proptest(strategy = "1.0f64..8.0"))]
        multiplier: f64,
        /// Shortens each delay by a random factor between one half and one.
        #[serde(default)]
        jitter: bool,
    },
}

impl Default for BackoffStrategy {
    fn default() -> Self {
        Self::Exponential {
            initial_delay_ms: DEFAULT_BACKOFF_INITIAL_MS,
            max_delay_ms: DEFAULT_BACKOFF_MAX_MS,
            multiplier: DEFAULT_BACKOFF_MULTIPLIER,
            jitter: false,
        }
    }
}

/// Whether and when a failed attempt is followed by another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    /// Retries beyond the first attempt.
    #[serde(default = "max_retries")]
    pub max_retries: u32,
    /// The time between them.
    #[serde(default)]
    pub backoff: BackoffStrategy,
    /// Categories that are retried; empty means all.
    #[serde(default)]
    pub retryable_categories: Vec<String>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_retries: DEFAULT_MAX_RETRIES, backoff: BackoffStrategy::default(), retryable_categories: Vec::new() }
    }
}

impl RetryPolicy {
    /// Reads a policy from JSON text.
    ///
    /// # Errors
    /// `InvalidPolicyJson` when it does not decode.
    pub fn from_json(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text).map_err(malformed)?;
        check_retry_shape(&json)?;
        let policy: Self = serde_json::from_value(json).map_err(malformed)?;
        policy.check()?;
        Ok(policy)
    }

    fn check(&self) -> Result<()> {
        match self.backoff {
            BackoffStrategy::Exponential { multiplier, .. } if !(multiplier.is_finite() && multiplier >= 0.0) => {
                Err(malformed("backoff multiplier is negative"))
            }
            _ => Ok(()),
        }
    }
}

/// Wall-clock limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct TimeoutPolicy {
    /// Per attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_timeout_ms: Option<u64>,
    /// From creation to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_deadline_ms: Option<u64>,
}

/// The pause before an execution that lost its lease is handed out again: none the first time, then doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ReclaimBackoff {
    /// Before the second consecutive reclaim.
    #[serde(default = "backoff_initial")]
    pub initial_delay_ms: u64,
    /// Never longer than this.
    #[serde(default = "backoff_max")]
    pub max_delay_ms: u64,
}

impl Default for ReclaimBackoff {
    fn default() -> Self {
        Self { initial_delay_ms: DEFAULT_BACKOFF_INITIAL_MS, max_delay_ms: DEFAULT_BACKOFF_MAX_MS }
    }
}

/// What a suspension does when its own arguments do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SuspensionPolicy {
    /// How long it lasts; unset means for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_timeout_ms: Option<u64>,
    /// What happens then.
    #[serde(default)]
    pub timeout_behavior: TimeoutBehavior,
}

/// Which workers may serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RoutingRequirements {
    /// What they must offer; empty means any worker.
    #[serde(default)]
    #[cfg_attr(test, proptest(strategy = "proptest::collection::btree_set(\"[a-z0-9:_-]{1,12}\", 0..5)"))]
    pub required_capabilities: BTreeSet<String>,
}

/// How much of an attempt's stream is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct StreamPolicy {
    /// Newest frames kept, exactly; unset means about [`DEFAULT_STREAM_MAXLEN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_maxlen: Option<u64>,
    /// How long a closed stream is kept; unset means as long as its execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ttl_ms: Option<u64>,
}

/// How an execution wants to be treated. What is unset takes the default of its field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExecutionPolicy {
    /// Absent means no retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_policy: Option<RetryPolicy>,
    /// Absent means no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_policy: Option<TimeoutPolicy>,
    /// Lost leases it survives; unset leaves it to the caller, then to [`DEFAULT_MAX_RECLAIM_COUNT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_reclaim_count: Option<u32>,
    /// The pause between reclaims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_backoff: Option<ReclaimBackoff>,
    /// Defaults of its suspensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension_policy: Option<SuspensionPolicy>,
    /// How often it may be replayed.
    #[serde(default = "max_replay_count")]
    pub max_replay_count: u32,
    /// Budgets that must have room before it is claimed.
    #[serde(default)]
    pub budget_ids: Vec<BudgetId>,
    /// Quotas that must admit it before it is claimed.
    #[serde(default)]
    pub quota_policy_ids: Vec<QuotaPolicyId>,
    /// Absent means any worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_requirements: Option<RoutingRequirements>,
    /// How long its idempotency key is remembered; zero or less disables it, unset means 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<i64>,
    /// How much of its streams is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_policy: Option<StreamPolicy>,
    /// Signals it takes.
    #[serde(default = "max_signals")]
    pub max_signals_per_execution: u32,
    /// How long it is kept once finished; unset leaves it to the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
}

impl Default for ExecutionPolicy {
    fn default() -> Self {
        Self {
            retry_policy: None,
            timeout_policy: None,
            max_reclaim_count: None,
            reclaim_backoff: None,
            suspension_policy: None,
            max_replay_count: DEFAULT_MAX_REPLAY_COUNT,
            budget_ids: Vec::new(),
            quota_policy_ids: Vec::new(),
            routing_requirements: None,
            dedup_window_ms: None,
            stream_policy: None,
            max_signals_per_execution: DEFAULT_MAX_SIGNALS,
            retention_ms: None,
        }
    }
}

impl ExecutionPolicy {
    /// The reclaims allowed: the policy's number, else the caller's, else [`DEFAULT_MAX_RECLAIM_COUNT`].
    #[must_use]
    pub fn reclaim_cap(&self, asked: Option<u32>) -> u32 {
        self.max_reclaim_count.or(asked).unwrap_or(DEFAULT_MAX_RECLAIM_COUNT)
    }

    /// How long an idempotency key is remembered; `None` when the policy disables it.
    #[must_use]
    pub fn dedup_window(&self) -> Option<u64> {
        match self.dedup_window_ms {
            None => Some(DEFAULT_DEDUP_WINDOW_MS),
            Some(window) => u64::try_from(window).ok().filter(|window| *window > 0),
        }
    }

    /// The class of workers that may serve.
    ///
    /// # Errors
    /// `InvalidCapabilities` with `required:<fault>`.
    pub fn requirement(&self) -> Result<RequirementClass> {
        let routing = self.routing_requirements.as_ref();
        routing.map_or_else(|| Ok(RequirementClass::default()), |r| RequirementClass::new(&r.required_capabilities))
    }
}

const fn max_retries() -> u32 {
    DEFAULT_MAX_RETRIES
}

const fn backoff_initial() -> u64 {
    DEFAULT_BACKOFF_INITIAL_MS
}

const fn backoff_max() -> u64 {
    DEFAULT_BACKOFF_MAX_MS
}

const fn backoff_multiplier() -> f64 {
    DEFAULT_BACKOFF_MULTIPLIER
}

const fn max_replay_count() -> u32 {
    DEFAULT_MAX_REPLAY_COUNT
}

const fn max_signals() -> u32 {
    DEFAULT_MAX_SIGNALS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{EngineError, ValidationKind};

    #[test]
    fn the_reclaim_cap_is_the_policys_then_the_callers_then_the_default() {
        let unset = ExecutionPolicy::default();
        let set = ExecutionPolicy { max_reclaim_count: Some(0), ..ExecutionPolicy::default() };
        assert_eq!((set.reclaim_cap(Some(7)), unset.reclaim_cap(Some(7)), unset.reclaim_cap(None)), (0, 7, 1000));
    }

    #[test]
    fn a_window_of_zero_or_less_disables_deduplication() {
        let window = |ms| ExecutionPolicy { dedup_window_ms: ms, ..ExecutionPolicy::default() }.dedup_window();
        assert_eq!(window(None), Some(86_400_000));
        assert_eq!((window(Some(0)), window(Some(-1)), window(Some(1))), (None, None, Some(1)));
    }

    #[test]
    fn a_retry_policy_is_read_from_text() {
        assert_eq!(RetryPolicy::from_json("{}").expect("decodes"), RetryPolicy::default());
        for bad in ["", "null", "{", "[]", r#"{"more":1}"#, r#"{"backoff":[]}"#] {
            let refused = RetryPolicy::from_json(bad);
            assert!(
                matches!(refused, Err(EngineError::Validation { kind: ValidationKind::InvalidPolicyJson, .. })),
                "{bad}: {refused:?}"
            );
        }
    }

    crate::testing::json_round_trips!(
        ExecutionPolicy,
        RetryPolicy,
        BackoffStrategy,
        TimeoutPolicy,
        ReclaimBackoff,
        SuspensionPolicy,
        RoutingRequirements,
        StreamPolicy
    );
}
