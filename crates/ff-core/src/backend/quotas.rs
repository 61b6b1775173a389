//! Quotas: how many executions may start in a window of time, and how many may run at once.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::budgets::ScopeType;
use super::layer::forward;
use crate::error::{EngineError, Result};
use crate::ids::{ExecutionId, Namespace, QuotaPolicyId};

fn policy_scope() -> String {
    ScopeType::Policy.as_str().to_owned()
}

/// Asks for a quota policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CreateQuotaPolicyArgs {
    /// The policy.
    pub quota_policy_id: QuotaPolicyId,
    /// The tenant.
    pub namespace: Namespace,
    /// A [`ScopeType`] literal.
    #[serde(default = "policy_scope")]
    pub scope_type: String,
    /// The lane, the flow, or `key=value`; a label for scope `policy`.
    #[serde(default)]
    pub scope_id: String,
    /// Length of the sliding window.
    #[serde(default)]
    pub window_seconds: u64,
    /// Admissions per window; 0 means unlimited.
    #[serde(default)]
    pub max_requests_per_window: u64,
    /// Executions at once; 0 means unlimited.
    #[serde(default)]
    pub max_concurrent: u64,
    /// Most random milliseconds added to a retry time.
    #[serde(default)]
    pub jitter_ms: u64,
}

/// Whether a quota policy was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CreateQuotaPolicyResult {
    /// It is new.
    Created {
        /// The policy.
        quota_policy_id: QuotaPolicyId,
    },
    /// It was there and is untouched.
    AlreadySatisfied {
        /// The policy.
        quota_policy_id: QuotaPolicyId,
    },
}

/// The numbers of a quota policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct QuotaPolicyLimits {
    /// Admissions per window; 0 means unlimited.
    #[serde(default)]
    pub max_requests_per_window: u64,
    /// Length of the sliding window; 0 means a minute.
    #[serde(default)]
    pub requests_per_window_seconds: u64,
    /// Executions at once; 0 means unlimited.
    #[serde(default)]
    pub active_concurrency_cap: u64,
    /// Most random milliseconds added to a retry time.
    #[serde(default)]
    pub jitter_ms: u64,
}

impl QuotaPolicyLimits {
    /// Whether it bounds nothing.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.max_requests_per_window == 0 && self.active_concurrency_cap == 0
    }
}

/// Asks for an execution to be admitted, with the limits to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CheckAdmissionArgs {
    /// Who wants in.
    pub execution_id: ExecutionId,
    /// Length of the sliding window.
    pub window_seconds: u64,
    /// Admissions per window; 0 means unlimited.
    pub rate_limit: u64,
    /// Executions at once; 0 means unlimited.
    pub concurrency_cap: u64,
    /// Most random milliseconds added to a retry time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<u64>,
}

/// Whether an execution may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CheckAdmissionResult {
    /// Yes; it is counted.
    Admitted,
    /// It was admitted before and still is.
    AlreadyAdmitted,
    /// The window is full; nothing was counted.
    RateExceeded {
        /// When to ask again.
        retry_after_ms: u64,
    },
    /// Too many run; nothing was counted.
    ConcurrencyExceeded,
}

impl CheckAdmissionResult {
    /// Whether the execution may start.
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        matches!(self, Self::Admitted | Self::AlreadyAdmitted)
    }
}

/// Asks for an admission to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ReleaseAdmissionArgs {
    /// The policy.
    pub quota_policy_id: QuotaPolicyId,
    /// Who was admitted.
    pub execution_id: ExecutionId,
}

/// An admission is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReleaseAdmissionResult {
    /// Nothing of it is left.
    Released,
}

/// Limits how fast executions start and how many run at once.
#[async_trait]
pub trait Quotas: Send + Sync {
    /// Creates a quota policy. One that exists is left untouched and answered with `AlreadySatisfied`.
    ///
    /// Errors in order: `InvalidInput` for numbers beyond 2^63 - 1; `InvalidQuotaSpec` for a rate without a window or a
    /// scope that makes no sense.
    async fn create_quota_policy(&self, _args: CreateQuotaPolicyArgs) -> Result<CreateQuotaPolicyResult> {
        Err(EngineError::Unavailable { op: "create_quota_policy" })
    }

    /// Admits an execution, or says why not and counts nothing. An empty dimension is `default`; each dimension has a
    /// window of its own. The policy need not exist. A repeat answers `AlreadyAdmitted` while the admission is live.
    ///
    /// Errors: `InvalidInput` for a bad dimension, a rate without a window, or numbers beyond 2^63 - 1.
    async fn check_admission(
        &self,
        _quota_policy_id: QuotaPolicyId,
        _dimension: &str,
        _args: CheckAdmissionArgs,
    ) -> Result<CheckAdmissionResult> {
        Err(EngineError::Unavailable { op: "check_admission" })
    }

    /// Undoes an admission whose claim failed, its place in the window included. Succeeds again and for no admission.
    async fn release_admission(&self, _args: ReleaseAdmissionArgs) -> Result<ReleaseAdmissionResult> {
        Err(EngineError::Unavailable { op: "release_admission" })
    }

    /// The numbers of a quota policy; `None` when there is none.
    async fn read_quota_policy_limits(&self, _quota_policy_id: QuotaPolicyId) -> Result<Option<QuotaPolicyLimits>> {
        Err(EngineError::Unavailable { op: "read_quota_policy_limits" })
    }
}

forward! { Quotas,
    create_quota_policy(args: CreateQuotaPolicyArgs) -> CreateQuotaPolicyResult => Safe;
    check_admission(quota_policy_id: QuotaPolicyId, dimension: &str, args: CheckAdmissionArgs) -> CheckAdmissionResult
        => Safe;
    release_admission(args: ReleaseAdmissionArgs) -> ReleaseAdmissionResult => Safe;
    read_quota_policy_limits(quota_policy_id: QuotaPolicyId) -> Option<QuotaPolicyLimits> => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::testing::json_round_trips!(
        CreateQuotaPolicyArgs,
        QuotaPolicyLimits,
        CheckAdmissionArgs,
        ReleaseAdmissionArgs,
    );
    crate::testing::answer_round_trips!(CreateQuotaPolicyResult, CheckAdmissionResult, ReleaseAdmissionResult);

    #[test]
    fn a_policy_without_rate_and_cap_bounds_nothing() {
        let jitter_alone = QuotaPolicyLimits { jitter_ms: 5, requests_per_window_seconds: 9, ..Default::default() };
        assert!(jitter_alone.is_unlimited());
        assert!(!QuotaPolicyLimits { active_concurrency_cap: 1, ..Default::default() }.is_unlimited());
        assert!(!QuotaPolicyLimits { max_requests_per_window: 1, ..Default::default() }.is_unlimited());
    }
}
