//! Budgets: limits on what executions may use, and what was used.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::layer::forward;
use crate::TimestampMs;
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{BudgetId, ExecutionId, FlowId, LaneId, Namespace};
use crate::words::words;

/// Amounts by dimension, in name order.
pub type Amounts = BTreeMap<String, u64>;

/// Most dimensions of one budget, and of one report.
pub const BUDGET_DIMENSIONS_MAX: usize = 64;

words! {
    /// What happens to attached executions when a limit is crossed.
    pub enum BreachAction {
        /// New claims wait; the default of hard limits.
        Block = "block",
        /// Runnable executions are held, too.
        Suspend = "suspend",
        /// Executions that are not active are cancelled.
        CancelPending = "cancel_pending",
        /// Every execution is cancelled.
        CancelAll = "cancel_all",
        /// It is only reported; soft limits alone, and their default.
        Warn = "warn",
    }
}

words! {
    /// How executions come under a budget or quota without naming it.
    pub enum ScopeType {
        /// They do not: it is attached by id, in the policy of an execution.
        Policy = "policy",
        /// All of its namespace.
        Namespace = "namespace",
        /// All of one lane.
        Lane = "lane",
        /// The members of one flow.
        Flow = "flow",
        /// All with one tag.
        Tag = "tag",
    }
}

/// Which executions come under a budget or quota, inside its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum BudgetScope {
    /// Those whose policy names it.
    Policy {},
    /// All.
    Namespace {},
    /// Those of one lane.
    Lane {
        /// The lane.
        lane_id: LaneId,
    },
    /// The members of one flow.
    Flow {
        /// The flow.
        flow_id: FlowId,
    },
    /// Those created with one tag.
    Tag {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
    },
}

impl BudgetScope {
    /// The kind of scope.
    #[must_use]
    pub const fn scope_type(&self) -> ScopeType {
        match self {
            Self::Policy {} => ScopeType::Policy,
            Self::Namespace {} => ScopeType::Namespace,
            Self::Lane { .. } => ScopeType::Lane,
            Self::Flow { .. } => ScopeType::Flow,
            Self::Tag { .. } => ScopeType::Tag,
        }
    }

    /// What is inside it, in the form a create request takes.
    #[must_use]
    pub fn scope_id(&self) -> String {
        match self {
            Self::Policy {} | Self::Namespace {} => String::new(),
            Self::Lane { lane_id } => lane_id.to_string(),
            Self::Flow { flow_id } => flow_id.to_string(),
            Self::Tag { key, value } => format!("{key}={value}"),
        }
    }
}

fn policy_scope() -> String {
    ScopeType::Policy.as_str().to_owned()
}

fn block() -> String {
    BreachAction::Block.as_str().to_owned()
}

fn warn() -> String {
    BreachAction::Warn.as_str().to_owned()
}

/// Asks for a budget. The three lists are parallel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CreateBudgetArgs {
    /// The budget.
    pub budget_id: BudgetId,
    /// The tenant.
    pub namespace: Namespace,
    /// A [`ScopeType`] literal.
    #[serde(default = "policy_scope")]
    pub scope_type: String,
    /// The lane, the flow, or `key=value`; a label for scope `policy`.
    #[serde(default)]
    pub scope_id: String,
    /// A [`BreachAction`] literal other than `warn`.
    #[serde(default = "block")]
    pub on_hard_limit: String,
    /// A [`BreachAction`] literal.
    #[serde(default = "warn")]
    pub on_soft_limit: String,
    /// Usage starts over this often; 0 means never.
    #[serde(default)]
    pub reset_interval_ms: u64,
    /// What is counted, at most [`BUDGET_DIMENSIONS_MAX`] names.
    pub dimensions: Vec<String>,
    /// Usage never exceeds these; 0 means unlimited.
    pub hard_limits: Vec<u64>,
    /// Usage above these is reported; 0 means unlimited.
    pub soft_limits: Vec<u64>,
}

/// Whether a budget was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CreateBudgetResult {
    /// It is new.
    Created {
        /// The budget.
        budget_id: BudgetId,
    },
    /// It was there and is untouched.
    AlreadySatisfied {
        /// The budget.
        budget_id: BudgetId,
    },
}

/// What an attempt used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct UsageDimensions {
    /// Counted as `input_tokens` unless 0.
    #[serde(default)]
    pub input_tokens: u64,
    /// Counted as `output_tokens` unless 0.
    #[serde(default)]
    pub output_tokens: u64,
    /// Counted as `wall_ms` unless 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Everything else, by name.
    #[serde(default)]
    pub custom: Amounts,
    /// Repeats with this key count once per budget for a day; empty means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
}

/// What was used, told by an operator. The two lists are parallel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ReportUsageAdminArgs {
    /// What was used; a name that occurs twice counts twice.
    pub dimensions: Vec<String>,
    /// How much.
    pub deltas: Vec<u64>,
    /// Repeats with this key count once per budget for a day; empty means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_key: Option<String>,
}

/// What became of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReportUsageResult {
    /// Added.
    Ok,
    /// Added; a soft limit is exceeded.
    SoftBreach {
        /// The first dimension above its limit.
        dimension: String,
        /// Usage after the report.
        current_usage: u64,
        /// The limit.
        soft_limit: u64,
    },
    /// Nothing was added: a hard limit would be exceeded.
    HardBreach {
        /// The first such dimension.
        dimension: String,
        /// Usage before the report.
        current_usage: u64,
        /// The limit.
        hard_limit: u64,
    },
    /// The dedup key is known; nothing was added.
    AlreadyApplied,
}

/// Asks for usage to be added and attributed to an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RecordSpendArgs {
    /// The budget.
    pub budget_id: BudgetId,
    /// Who spent; it need not exist.
    pub execution_id: ExecutionId,
    /// What was spent, by name.
    pub deltas: Amounts,
    /// Repeats with this key count once per budget for a day; empty means none.
    #[serde(default)]
    pub idempotency_key: String,
}

/// Asks for an execution's recorded spend to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ReleaseBudgetArgs {
    /// The budget.
    pub budget_id: BudgetId,
    /// Whose spend.
    pub execution_id: ExecutionId,
}

/// A budget starts over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResetBudgetResult {
    /// Usage is zero.
    Reset {
        /// When it starts over again; absent without an interval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_reset_at: Option<TimestampMs>,
    },
}

/// Everything about a budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct BudgetStatus {
    /// The budget.
    pub budget_id: BudgetId,
    /// The tenant.
    pub namespace: Namespace,
    /// The kind of scope.
    pub scope_type: ScopeType,
    /// What is inside the scope.
    pub scope_id: String,
    /// What a hard breach does.
    pub on_hard_limit: BreachAction,
    /// What a soft breach does.
    pub on_soft_limit: BreachAction,
    /// Used since the last reset.
    pub usage: Amounts,
    /// Hard limits; 0 means unlimited.
    pub hard_limits: Amounts,
    /// Soft limits; 0 means unlimited.
    pub soft_limits: Amounts,
    /// Reports refused since the last reset.
    pub breach_count: u64,
    /// Reports that exceeded a soft limit since the last reset.
    pub soft_breach_count: u64,
    /// When a report was last refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_breach_at: Option<TimestampMs>,
    /// For which dimension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_breach_dim: Option<String>,
    /// Usage starts over this often; 0 means never.
    pub reset_interval_ms: u64,
    /// How often it has.
    pub reset_count: u64,
    /// When it last did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reset_at: Option<TimestampMs>,
    /// When it will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_reset_at: Option<TimestampMs>,
    /// When the budget was created.
    pub created_at: TimestampMs,
}

/// The numbers of a budget; all empty when there is no such budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct BudgetUsageAndLimits {
    /// Hard limits; 0 means unlimited.
    pub hard_limits: Amounts,
    /// Soft limits; 0 means unlimited.
    pub soft_limits: Amounts,
    /// Used since the last reset.
    pub usage: Amounts,
}

/// Limits what executions may use. Reaching a hard limit exactly is allowed, and stops new claims.
#[async_trait]
pub trait Budgets: Send + Sync {
    /// Creates a budget with nothing used. One that exists is left untouched and answered with `AlreadySatisfied`.
    ///
    /// Errors in order: `InvalidInput` for lists of unequal length, too many, repeated or bad names, limits beyond
    /// 2^63 - 1 or an unknown action; `InvalidBudgetScope`.
    async fn create_budget(&self, _args: CreateBudgetArgs) -> Result<CreateBudgetResult> {
        Err(EngineError::Unavailable { op: "create_budget" })
    }

    /// Adds what the owner of an attempt used: all of it, or nothing when a hard limit would be exceeded.
    ///
    /// Errors in order: `InvalidInput` for bad names or amounts; the fence errors of the handle; `NotFound(budget)`. A
    /// repeat with the same dedup key answers `AlreadyApplied`; a refused report may be repeated.
    async fn report_usage(
        &self,
        handle: &Handle,
        budget_id: BudgetId,
        dimensions: UsageDimensions,
    ) -> Result<ReportUsageResult>;

    /// Adds usage without a lease. Errors in order: `InvalidInput`; `NotFound(budget)`. Repeats as `report_usage`.
    async fn report_usage_admin(&self, _budget_id: BudgetId, _args: ReportUsageAdminArgs) -> Result<ReportUsageResult> {
        Err(EngineError::Unavailable { op: "report_usage_admin" })
    }

    /// Adds usage and attributes it to an execution, so that it can be released. Without deltas it answers `Ok` and
    /// does nothing. Errors in order: `InvalidInput`; `NotFound(budget)`. Repeats as `report_usage`.
    async fn record_spend(&self, _args: RecordSpendArgs) -> Result<ReportUsageResult> {
        Err(EngineError::Unavailable { op: "record_spend" })
    }

    /// Takes back what an execution recorded since the last reset; usage never falls below zero. Succeeds when there is
    /// nothing to take back. Dedup keys stay. A repeat also takes back what was recorded in between.
    async fn release_budget(&self, _args: ReleaseBudgetArgs) -> Result<()> {
        Err(EngineError::Unavailable { op: "release_budget" })
    }

    /// Starts over: usage, attributions and breach marks are gone, the next reset is measured from now.
    ///
    /// Errors: `NotFound(budget)`.
    async fn reset_budget(&self, _budget_id: BudgetId) -> Result<ResetBudgetResult> {
        Err(EngineError::Unavailable { op: "reset_budget" })
    }

    /// Everything about a budget. Errors: `NotFound(budget)`.
    async fn get_budget_status(&self, _budget_id: BudgetId) -> Result<BudgetStatus> {
        Err(EngineError::Unavailable { op: "get_budget_status" })
    }

    /// The numbers of a budget; empty when there is none.
    async fn read_budget_usage_and_limits(&self, _budget_id: BudgetId) -> Result<BudgetUsageAndLimits> {
        Err(EngineError::Unavailable { op: "read_budget_usage_and_limits" })
    }
}

forward! { Budgets,
    create_budget(args: CreateBudgetArgs) -> CreateBudgetResult => Safe;
    report_usage(handle: &Handle, budget_id: BudgetId, dimensions: UsageDimensions) -> ReportUsageResult
        => SafeIfNamed(dimensions.dedup_key.as_ref().is_some_and(|key| !key.is_empty()));
    report_usage_admin(budget_id: BudgetId, args: ReportUsageAdminArgs) -> ReportUsageResult
        => SafeIfNamed(args.dedup_key.as_ref().is_some_and(|key| !key.is_empty()));
    record_spend(args: RecordSpendArgs) -> ReportUsageResult => SafeIfNamed(!args.idempotency_key.is_empty());
    release_budget(args: ReleaseBudgetArgs) -> () => OnlyIfUnsent;
    reset_budget(budget_id: BudgetId) -> ResetBudgetResult => OnlyIfUnsent;
    get_budget_status(budget_id: BudgetId) -> BudgetStatus => Safe;
    read_budget_usage_and_limits(budget_id: BudgetId) -> BudgetUsageAndLimits => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    crate::testing::json_round_trips!(
        BudgetScope,
        CreateBudgetArgs,
        UsageDimensions,
        ReportUsageAdminArgs,
        RecordSpendArgs,
        ReleaseBudgetArgs,
    );
    crate::testing::answer_round_trips!(
        CreateBudgetResult,
        ReportUsageResult,
        ResetBudgetResult,
        BudgetStatus,
        BudgetUsageAndLimits,
    );

    #[test]
    fn a_budget_blocks_on_hard_and_warns_on_soft_limits_by_default() {
        let args: CreateBudgetArgs = serde_json::from_value(json!({
            "budget_id": uuid::Uuid::nil(), "namespace": "acme",
            "dimensions": ["usd"], "hard_limits": [5], "soft_limits": [0]
        }))
        .unwrap();
        assert_eq!((args.scope_type.as_str(), args.scope_id.as_str()), ("policy", ""));
        assert_eq!((args.on_hard_limit.as_str(), args.on_soft_limit.as_str()), ("block", "warn"));
        assert_eq!(args.reset_interval_ms, 0);
    }

    #[test]
    fn an_answer_without_data_is_only_its_tag() {
        assert_eq!(serde_json::to_value(ReportUsageResult::Ok).unwrap(), json!({"type": "ok"}));
        let never = ResetBudgetResult::Reset { next_reset_at: None };
        assert_eq!(serde_json::to_value(never).unwrap(), json!({"type": "reset"}));
    }
}
