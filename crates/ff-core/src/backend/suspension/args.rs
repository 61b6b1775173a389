//! Arguments and answers of the suspension facet.

use serde::{Deserialize, Serialize};

use super::condition::ResumeCondition;
use crate::blob::Blob;
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{ExecutionId, SignalId, SuspensionId, WaitpointId};
use crate::policy::TimeoutBehavior;
use crate::state::{BlockingReason, PublicState};
use crate::time::TimestampMs;
use crate::token::WaitpointToken;
use crate::words::words;

/// Where suspensions without a timeout stand in listings: after every real timeout.
pub const NO_TIMEOUT_MS: i64 = 9_999_999_999_999;

/// Name of the signal recorded when a timeout resumes an execution.
pub const TIMEOUT_SIGNAL_NAME: &str = "timeout";

/// Source type of the signal recorded when a timeout resumes an execution.
pub const TIMEOUT_SOURCE_TYPE: &str = "suspension_timeout";

/// Longest time a suspend is remembered by its idempotency key.
pub const SUSPEND_DEDUP_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;

/// How long a suspend is remembered beyond its timeout.
const SUSPEND_DEDUP_MARGIN_MS: u64 = 60_000;

/// A waitpoint of a new suspension. The first of a suspend is its primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum WaitpointBinding {
    /// A waitpoint created by this suspend.
    Fresh {
        /// Its id; no waitpoint may have it, open or closed.
        waitpoint_id: WaitpointId,
        /// Its name inside the condition.
        waitpoint_key: String,
    },
    /// A pending waitpoint with its key, its token and the signals it has buffered. Only as the primary.
    UsePending {
        /// The waitpoint.
        waitpoint_id: WaitpointId,
    },
    /// As [`UsePending`](Self::UsePending), whichever attempt since the last replay has opened it: what was handed out before a retry or a
    /// takeover still counts.
    UseEarlier {
        /// The waitpoint.
        waitpoint_id: WaitpointId,
    },
}

impl WaitpointBinding {
    /// A fresh waitpoint whose key is derived from its id: `wpk:<id>`.
    #[must_use]
    pub fn fresh(waitpoint_id: WaitpointId) -> Self {
        Self::Fresh { waitpoint_id, waitpoint_key: format!("wpk:{waitpoint_id}") }
    }

    /// The waitpoint.
    #[must_use]
    pub const fn waitpoint_id(&self) -> WaitpointId {
        match self {
            Self::Fresh { waitpoint_id, .. }
            | Self::UsePending { waitpoint_id }
            | Self::UseEarlier { waitpoint_id } => *waitpoint_id,
        }
    }

    /// The key, unless only the pending waitpoint's record knows it.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Fresh { waitpoint_key, .. } => Some(waitpoint_key),
            Self::UsePending { .. } | Self::UseEarlier { .. } => None,
        }
    }
}

/// What happens once the condition holds. A resume always closes the suspension with all its waitpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ResumePolicy {
    /// How long a resumed execution waits before it can be claimed; a delivery that names a delay overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_delay_ms: Option<u64>,
}

words! {
    /// Why an execution suspends.
    pub enum SuspensionReasonCode {
        /// A signal is awaited.
        WaitingForSignal = "waiting_for_signal",
        /// An approval is awaited.
        WaitingForApproval = "waiting_for_approval",
        /// A callback is awaited.
        WaitingForCallback = "waiting_for_callback",
        /// A tool's result is awaited.
        WaitingForToolResult = "waiting_for_tool_result",
        /// A person must look at it; also the reason after an escalated timeout.
        WaitingForOperatorReview = "waiting_for_operator_review",
        /// A rule paused it.
        PausedByPolicy = "paused_by_policy",
        /// A budget paused it.
        PausedByBudget = "paused_by_budget",
        /// A step of the work ended.
        StepBoundary = "step_boundary",
        /// A person paused it.
        ManualPause = "manual_pause",
    }
}

impl SuspensionReasonCode {
    /// How the suspended execution explains itself.
    #[must_use]
    pub const fn blocking_reason(self) -> BlockingReason {
        match self {
            Self::WaitingForSignal | Self::StepBoundary => BlockingReason::WaitingForSignal,
            Self::WaitingForApproval => BlockingReason::WaitingForApproval,
            Self::WaitingForCallback => BlockingReason::WaitingForCallback,
            Self::WaitingForToolResult => BlockingReason::WaitingForToolResult,
            Self::WaitingForOperatorReview | Self::ManualPause => BlockingReason::PausedByOperator,
            Self::PausedByPolicy => BlockingReason::PausedByPolicy,
            Self::PausedByBudget => BlockingReason::WaitingForBudget,
        }
    }
}

words! {
    /// Who asked for a suspension.
    #[derive(Default)]
    pub enum SuspensionRequester {
        /// The worker that owned the execution.
        #[default]
        Worker = "worker",
        /// A person.
        Operator = "operator",
        /// A rule.
        Policy = "policy",
        /// The rule of an earlier timeout.
        SystemTimeoutPolicy = "system_timeout_policy",
    }
}

/// A suspension as a worker asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SuspendArgs {
    /// Names this episode.
    pub suspension_id: SuspensionId,
    /// The waitpoints, primary first; at least one.
    pub waitpoints: Vec<WaitpointBinding>,
    /// When to go on.
    pub resume_condition: ResumeCondition,
    /// How to go on.
    #[serde(default)]
    pub resume_policy: ResumePolicy,
    /// Why.
    pub reason_code: SuspensionReasonCode,
    /// Who asked.
    #[serde(default)]
    pub requested_by: SuspensionRequester,
    /// When to stop waiting; without it the execution's policy gives timeout and behaviour together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_at: Option<TimestampMs>,
    /// What happens at `timeout_at`.
    #[serde(default)]
    pub timeout_behavior: TimeoutBehavior,
    /// Where the worker keeps what it needs to continue; opaque to the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_metadata_pointer: Option<String>,
    /// Makes repetitions answer like the first call, per execution; empty means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

impl SuspendArgs {
    /// A suspension on one waitpoint, without a timeout and an idempotency key.
    #[must_use]
    pub fn new(
        suspension_id: SuspensionId,
        waitpoint: WaitpointBinding,
        resume_condition: ResumeCondition,
        reason_code: SuspensionReasonCode,
    ) -> Self {
        Self {
            suspension_id,
            waitpoints: vec![waitpoint],
            resume_condition,
            resume_policy: ResumePolicy::default(),
            reason_code,
            requested_by: SuspensionRequester::default(),
            timeout_at: None,
            timeout_behavior: TimeoutBehavior::default(),
            continuation_metadata_pointer: None,
            idempotency_key: None,
        }
    }

    /// The key under which repetitions are recognised.
    #[must_use]
    pub fn dedup_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref().filter(|key| !key.is_empty())
    }
}

/// How long a suspend is remembered by its idempotency key: a minute beyond its timeout, at most seven days.
#[must_use]
pub fn suspend_dedup_ttl_ms(timeout_at: Option<TimestampMs>, now: TimestampMs) -> u64 {
    timeout_at.map_or(SUSPEND_DEDUP_MS_MAX, |at| {
        at.since(now).saturating_add(SUSPEND_DEDUP_MARGIN_MS).min(SUSPEND_DEDUP_MS_MAX)
    })
}

/// A waitpoint beside the primary, with its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct AdditionalWaitpointBinding {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// Its key.
    pub waitpoint_key: String,
    /// What a sender must present.
    pub waitpoint_token: WaitpointToken,
}

/// Where signals for a suspension may be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SuspendOutcomeDetails {
    /// The episode.
    pub suspension_id: SuspensionId,
    /// The primary waitpoint.
    pub waitpoint_id: WaitpointId,
    /// Its key.
    pub waitpoint_key: String,
    /// What a sender must present.
    pub waitpoint_token: WaitpointToken,
    /// The other waitpoints, in the order of the bindings.
    #[serde(default)]
    pub additional_waitpoints: Vec<AdditionalWaitpointBinding>,
}

/// What a suspend did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SuspendOutcome {
    /// The lease is released and the old handle is dead.
    Suspended {
        /// Where to send signals.
        details: SuspendOutcomeDetails,
        /// Identifies the suspended attempt; bears no lease.
        handle: Handle,
    },
    /// Buffered signals satisfy the condition already: lease, attempt and handle stay as they are.
    AlreadySatisfied {
        /// The waitpoint, now closed.
        details: SuspendOutcomeDetails,
    },
}

impl SuspendOutcome {
    /// The waitpoints, whatever happened.
    #[must_use]
    pub const fn details(&self) -> &SuspendOutcomeDetails {
        match self {
            Self::Suspended { details, .. } | Self::AlreadySatisfied { details } => details,
        }
    }
}

/// A signal that satisfied a condition, or part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ResumeSignal {
    /// The signal.
    pub signal_id: SignalId,
    /// The waitpoint it came to.
    pub waitpoint_id: WaitpointId,
    /// That waitpoint's key.
    pub waitpoint_key: String,
    /// Its name.
    pub signal_name: String,
    /// Its category.
    pub signal_category: String,
    /// What kind of sender.
    pub source_type: String,
    /// Which sender; empty when anonymous.
    pub source_identity: String,
    /// The sender's correlation id; empty when absent.
    pub correlation_id: String,
    /// When it was accepted.
    pub accepted_at: TimestampMs,
    /// Its body, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Blob>,
    /// How the sender says the body is encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
}

words! {
    /// What made an execution resume without its condition.
    pub enum ResumeTrigger {
        /// A signal handled elsewhere.
        Signal = "signal",
        /// A person.
        Operator = "operator",
        /// A rule.
        AutoResume = "auto_resume",
    }
}

/// A resume regardless of the condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ResumeExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// A [`ResumeTrigger`] word, kept for audit.
    #[serde(default = "default_trigger_type")]
    pub trigger_type: String,
    /// How long the execution waits before it can be claimed.
    #[serde(default)]
    pub resume_delay_ms: u64,
}

fn default_trigger_type() -> String {
    ResumeTrigger::Signal.as_str().to_owned()
}

impl ResumeExecutionArgs {
    /// A resume without delay.
    #[must_use]
    pub fn new(execution_id: ExecutionId, trigger: ResumeTrigger) -> Self {
        Self { execution_id, trigger_type: trigger.as_str().to_owned(), resume_delay_ms: 0 }
    }

    /// The trigger.
    ///
    /// # Errors
    /// `InvalidInput` when the word is unknown.
    pub fn trigger(&self) -> Result<ResumeTrigger> {
        self.trigger_type.parse().map_err(EngineError::invalid)
    }
}

/// What a resume did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResumeExecutionResult {
    /// The suspension and all its waitpoints are closed.
    Resumed {
        /// `waiting`, or `delayed` when a delay was asked for.
        public_state: PublicState,
    },
}

/// Position in the list of suspended executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SuspendedCursor {
    /// The timeout, [`NO_TIMEOUT_MS`] at most and when there is none.
    pub timeout_at_ms: i64,
    /// The execution.
    pub execution_id: ExecutionId,
}

impl SuspendedCursor {
    /// Where an execution stands: by timeout, those without one last, then by id.
    #[must_use]
    pub fn at(timeout_at: Option<TimestampMs>, execution_id: ExecutionId) -> Self {
        Self { timeout_at_ms: timeout_at.map_or(NO_TIMEOUT_MS, |at| at.0.min(NO_TIMEOUT_MS)), execution_id }
    }
}

/// A suspended execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SuspendedExecutionEntry {
    /// The execution.
    pub execution_id: ExecutionId,
    /// When its timeout strikes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_at: Option<TimestampMs>,
    /// Why it is suspended.
    pub reason: SuspensionReasonCode,
}

impl SuspendedExecutionEntry {
    /// The position of this entry; a page after it starts with the next one.
    #[must_use]
    pub fn cursor(&self) -> SuspendedCursor {
        SuspendedCursor::at(self.timeout_at, self.execution_id)
    }
}

/// One page of suspended executions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListSuspendedPage {
    /// In the order of their cursors.
    pub entries: Vec<SuspendedExecutionEntry>,
    /// Where to go on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<SuspendedCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    crate::testing::json_round_trips!(
        WaitpointBinding,
        ResumePolicy,
        SuspendArgs,
        ResumeExecutionArgs,
        SuspendedCursor,
        ResumeSignal,
        SuspendOutcomeDetails,
        AdditionalWaitpointBinding,
        ListSuspendedPage,
        SuspendedExecutionEntry,
    );
    crate::testing::answer_round_trips!(SuspendOutcome, ResumeExecutionResult);

    fn execution(bits: u128) -> ExecutionId {
        ExecutionId::new(3, Uuid::from_u128(bits))
    }

    #[test]
    fn every_reason_explains_itself_on_the_execution() {
        for reason in SuspensionReasonCode::ALL {
            let expected = match reason.as_str() {
                "waiting_for_operator_review" | "manual_pause" => "paused_by_operator",
                "paused_by_budget" => "waiting_for_budget",
                "step_boundary" => "waiting_for_signal",
                same => same,
            };
            assert_eq!(reason.blocking_reason().as_str(), expected);
        }
    }

    #[test]
    fn a_minimal_suspend_takes_the_defaults() {
        let id = Uuid::from_u128(7);
        let args: SuspendArgs = serde_json::from_value(serde_json::json!({
            "suspension_id": id,
            "waitpoints": [{"type": "fresh", "waitpoint_id": id, "waitpoint_key": format!("wpk:{id}")}],
            "resume_condition": {"type": "operator_only"},
            "reason_code": "manual_pause",
        }))
        .expect("a suspend");
        let expected = SuspendArgs::new(
            SuspensionId::from_uuid(id),
            WaitpointBinding::fresh(WaitpointId::from_uuid(id)),
            ResumeCondition::OperatorOnly {},
            SuspensionReasonCode::ManualPause,
        );
        assert_eq!(args, expected);
        assert_eq!(args.requested_by, SuspensionRequester::Worker);
        assert_eq!(args.timeout_behavior, TimeoutBehavior::Fail);
    }

    #[test]
    fn an_empty_idempotency_key_is_none() {
        let binding = WaitpointBinding::UsePending { waitpoint_id: WaitpointId::from_uuid(Uuid::nil()) };
        let mut args = SuspendArgs::new(
            SuspensionId::from_uuid(Uuid::nil()),
            binding,
            ResumeCondition::OperatorOnly {},
            SuspensionReasonCode::ManualPause,
        );
        args.idempotency_key = Some(String::new());
        assert_eq!(args.dedup_key(), None);
        args.idempotency_key = Some("once".into());
        assert_eq!(args.dedup_key(), Some("once"));
    }

    #[test]
    fn a_suspend_is_remembered_a_minute_beyond_its_timeout_and_at_most_seven_days() {
        let now = TimestampMs(1_000);
        let ttl = |at: i64| suspend_dedup_ttl_ms(Some(TimestampMs(at)), now);
        assert_eq!(ttl(6_000), 65_000);
        assert_eq!(ttl(0), 60_000);
        assert_eq!(ttl(i64::MAX), SUSPEND_DEDUP_MS_MAX);
        assert_eq!(suspend_dedup_ttl_ms(None, now), SUSPEND_DEDUP_MS_MAX);
    }

    #[test]
    fn an_unknown_trigger_is_invalid_input() {
        let mut args = ResumeExecutionArgs::new(execution(1), ResumeTrigger::Operator);
        assert_eq!(args.trigger().expect("known"), ResumeTrigger::Operator);
        args.trigger_type = "magic".into();
        assert_eq!(args.trigger().expect_err("unknown").code(), "invalid_input");
        let given = serde_json::json!({"execution_id": execution(1)});
        let defaulted: ResumeExecutionArgs = serde_json::from_value(given).expect("defaults");
        assert_eq!((defaulted.trigger().expect("known"), defaulted.resume_delay_ms), (ResumeTrigger::Signal, 0));
    }

    #[test]
    fn a_resume_policy_does_not_take_flags_that_would_do_nothing() {
        for flag in ["consume_matched_signals", "retain_signal_buffer_until_closed", "close_waitpoint_on_resume"] {
            let json = format!(r#"{{"{flag}":true}}"#);
            assert!(serde_json::from_str::<ResumePolicy>(&json).is_err(), "{flag}");
        }
    }

    proptest! {
        #[test]
        fn suspensions_without_a_timeout_stand_last(at: i64, with: ExecutionId, without: ExecutionId) {
            let timed = SuspendedCursor::at(Some(TimestampMs(at)), with);
            let open = SuspendedCursor::at(None, without);
            prop_assert!(timed.timeout_at_ms <= open.timeout_at_ms);
            prop_assert!(at >= NO_TIMEOUT_MS || timed < open);
        }
    }
}
