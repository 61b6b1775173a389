//! An attempt reports, ends or parks.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::layer::forward;
use crate::blob::Blob;
use crate::error::{EngineError, ErrorSummary, Result};
use crate::handle::Handle;
use crate::ids::{AttemptIndex, ExecutionId, FenceTriple};
use crate::rules::fence::CancelSource;
use crate::rules::retry::FailureClass;
use crate::state::PublicState;
use crate::time::TimestampMs;

/// A success reported by stored proof of ownership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CompleteExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Proof of ownership; may be absent for an operator override only.
    #[serde(default)]
    pub fence: FenceTriple,
    /// Position of the attempt.
    pub attempt_index: AttemptIndex,
    /// The result, stored byte for byte; absent stores none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_payload: Option<Blob>,
    /// Who says so.
    #[serde(default)]
    pub source: CancelSource,
}

/// The answer to a completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CompleteExecutionResult {
    /// Over, successfully.
    Completed {
        /// Which execution.
        execution_id: ExecutionId,
        /// `completed`.
        public_state: PublicState,
    },
}

/// One completion among several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CompleteManyItem {
    /// Proof of ownership.
    pub handle: Handle,
    /// The result, stored byte for byte; absent stores none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_payload: Option<Blob>,
}

/// What became of one completion among several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CompleteManyOutcome {
    /// Over, successfully.
    Completed,
    /// Not completed; the other items are not affected.
    Refused {
        /// What a single completion would have failed with.
        error: ErrorSummary,
    },
}

impl From<Result<()>> for CompleteManyOutcome {
    fn from(result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::Completed,
            Err(error) => Self::Refused { error: ErrorSummary::from(&error) },
        }
    }
}

/// What went wrong in an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FailureReason {
    /// For people.
    pub message: String,
    /// For programs, stored byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Blob>,
}

impl FailureReason {
    /// A failure without detail.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), detail: None }
    }
}

/// What follows a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FailOutcome {
    /// Another attempt may be claimed later.
    RetryScheduled {
        /// Not before this time.
        delay_until: TimestampMs,
    },
    /// The execution has failed for good.
    TerminalFailed,
}

/// A failure reported by stored proof of ownership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct FailExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Proof of ownership; may be absent for an operator override only.
    #[serde(default)]
    pub fence: FenceTriple,
    /// Position of the attempt.
    pub attempt_index: AttemptIndex,
    /// For people.
    pub failure_reason: String,
    /// The failure class, or a category of the caller's own, which can be retried.
    pub failure_category: String,
    /// A retry policy as a JSON document; empty means the execution's own.
    #[serde(default)]
    pub retry_policy_json: String,
    /// Who says so.
    #[serde(default)]
    pub source: CancelSource,
}

/// What follows a failed attempt, as the fenced form answers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FailExecutionResult {
    /// Another attempt may be claimed later.
    RetryScheduled {
        /// Not before this time.
        delay_until: TimestampMs,
        /// The index it will have.
        next_attempt_index: AttemptIndex,
    },
    /// The execution has failed for good.
    TerminalFailed,
}

/// A cancellation from any state that is not terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CancelExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Why, for people; may be empty.
    #[serde(default)]
    pub reason: String,
    /// Who cancels.
    #[serde(default)]
    pub source: CancelSource,
    /// Proof of ownership; needed while an attempt owns the execution, unless an operator overrides.
    #[serde(default)]
    pub fence: FenceTriple,
}

/// The answer to a cancellation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CancelExecutionResult {
    /// Over, cancelled.
    Cancelled {
        /// Which execution.
        execution_id: ExecutionId,
        /// `cancelled`.
        public_state: PublicState,
    },
}

/// Most steps of one life of an execution.
pub const STEPS_MAX: u32 = 1_000;

/// Most bytes of all steps of one life together.
pub const STEPS_BYTES_MAX: u64 = 16 << 20;

/// What an attempt does with the execution it owns.
///
/// Calls that take a handle fail in this order: a foreign or altered handle (`Validation`), `NotFound(execution)`,
/// `Contention(ExecutionNotActive)`, `State(LeaseRevoked)`, `State(LeaseExpired)`, `State(StaleLease)`. A caller whose
/// reply was lost repeats the call and gets the first answer, as long as nobody owned the execution since.
#[async_trait]
#[allow(unused_variables, reason = "default bodies ignore their arguments")]
pub trait Attempts: Send + Sync {
    /// Overwrites percent and message; what is absent stays as it was. The last write wins.
    ///
    /// Errors: `Validation(InvalidInput)` for more than 100 percent or a message that is not a free string, then those of
    /// the handle.
    async fn progress(&self, handle: &Handle, percent: Option<u8>, message: Option<&str>) -> Result<()>;

    /// Sets one tag of the execution, as [`set_execution_tag`](super::Inspection::set_execution_tag) does, while the caller owns it. Fenced
    /// like [`progress`](Self::progress). A repeated call changes nothing.
    ///
    /// Errors: `Validation(InvalidInput)` for a bad key or value, those of the handle, `Validation(InvalidInput)` for too many tags.
    async fn tag(&self, handle: &Handle, key: &str, value: &str) -> Result<()> {
        Err(EngineError::Unavailable { op: "tag" })
    }

    /// Ends the execution successfully. A repeated call succeeds; the result of the first one stays.
    ///
    /// Errors: those of the handle, `Validation(PayloadTooLarge)`.
    async fn complete(&self, handle: &Handle, result_payload: Option<Blob>) -> Result<()>;

    /// Ends the execution successfully, by fence or operator override; an expired or revoked lease refuses either.
    ///
    /// Errors: `Validation(InvalidInput)` for a missing or partial fence, then as [`complete`](Self::complete).
    async fn complete_execution(&self, args: CompleteExecutionArgs) -> Result<CompleteExecutionResult> {
        Err(EngineError::Unavailable { op: "complete_execution" })
    }

    /// Ends several executions, each as [`complete`](Self::complete) would; one outcome per item, in order.
    async fn complete_many(&self, items: Vec<CompleteManyItem>) -> Result<Vec<CompleteManyOutcome>> {
        Err(EngineError::Unavailable { op: "complete_many" })
    }

    /// Ends the attempt with a failure; the stored policy and the class decide between a retry and the end.
    ///
    /// Errors: `Validation(InvalidInput)` for a message that is not a free string (long text belongs into the detail),
    /// those of the handle, `Validation(PayloadTooLarge)` for the detail. A repeated call gets the stored decision.
    async fn fail(&self, handle: &Handle, reason: FailureReason, class: FailureClass) -> Result<FailOutcome>;

    /// Ends the attempt with a failure, by fence or operator override, under the given retry policy or the stored one.
    ///
    /// Errors: `Validation(InvalidInput)` for a missing or partial fence, `Validation(InvalidPolicyJson)`, then as
    /// [`fail`](Self::fail).
    async fn fail_execution(&self, args: FailExecutionArgs) -> Result<FailExecutionResult> {
        Err(EngineError::Unavailable { op: "fail_execution" })
    }

    /// Ends the execution as cancelled, by the worker that owns it. A repeated call succeeds.
    ///
    /// Errors: `Validation(InvalidInput)` for a reason that is not a free string, then those of the handle.
    async fn cancel(&self, handle: &Handle, reason: &str) -> Result<()>;

    /// Ends an execution as cancelled from any state that is not terminal; one that is cancelled already is a success.
    ///
    /// Errors in order: `NotFound(execution)`, `Contention(ExecutionNotActive)` when it ended otherwise; while an
    /// attempt owns it and no operator overrides: `Validation(InvalidInput)` for a missing or partial fence,
    /// `State(StaleLease)`, `State(LeaseRevoked)`, `State(LeaseExpired)`.
    async fn cancel_execution(&self, args: CancelExecutionArgs) -> Result<CancelExecutionResult> {
        Err(EngineError::Unavailable { op: "cancel_execution" })
    }

    /// Gives the lease back until a time; the same attempt continues then. A time that has passed means now.
    ///
    /// Errors: those of the handle. A repeated call with the same time succeeds.
    async fn delay(&self, handle: &Handle, delay_until: TimestampMs) -> Result<()>;

    /// Gives the lease back until the children resolve; the same attempt continues then, at once if nothing is open.
    ///
    /// Errors: those of the handle. A repeated call succeeds.
    async fn wait_children(&self, handle: &Handle) -> Result<()>;

    /// Remembers a value under a name for as long as the execution is not replayed, whoever owns it later. The first value of a name
    /// stays; answers what is remembered. Fenced like [`progress`](Self::progress): neither renewals nor progress get in its way.
    ///
    /// Errors: `Validation(InvalidInput)` for a name that is empty or not a free string, those of the handle,
    /// `Validation(PayloadTooLarge)` for more bytes than a result may have, `Validation(InvalidInput)` (`too_many_steps`)
    /// beyond [`STEPS_MAX`], `Validation(PayloadTooLarge)` when all values of this life would have more than [`STEPS_BYTES_MAX`].
    async fn save_step(&self, handle: &Handle, name: &str, value: Blob) -> Result<Blob> {
        Err(EngineError::Unavailable { op: "save_step" })
    }

    /// Everything that was remembered since the execution was created or last replayed, by name.
    ///
    /// Errors: `NotFound(execution)`.
    async fn read_steps(&self, execution_id: ExecutionId) -> Result<BTreeMap<String, Blob>> {
        Err(EngineError::Unavailable { op: "read_steps" })
    }
}

forward! { Attempts,
    progress(handle: &Handle, percent: Option<u8>, message: Option<&str>) -> () => Safe;
    tag(handle: &Handle, key: &str, value: &str) -> () => Safe;
    complete(handle: &Handle, result_payload: Option<Blob>) -> () => Safe;
    complete_execution(args: CompleteExecutionArgs) -> CompleteExecutionResult
        => SafeIfNamed(args.fence.lease_id.is_some());
    complete_many(items: Vec<CompleteManyItem>) -> Vec<CompleteManyOutcome> => Safe;
    fail(handle: &Handle, reason: FailureReason, class: FailureClass) -> FailOutcome => Safe;
    fail_execution(args: FailExecutionArgs) -> FailExecutionResult
        => SafeIfNamed(args.fence.lease_id.is_some());
    cancel(handle: &Handle, reason: &str) -> () => Safe;
    cancel_execution(args: CancelExecutionArgs) -> CancelExecutionResult => Safe;
    delay(handle: &Handle, delay_until: TimestampMs) -> () => Safe;
    wait_children(handle: &Handle) -> () => Safe;
    save_step(handle: &Handle, name: &str, value: Blob) -> Blob => Safe;
    read_steps(execution_id: ExecutionId) -> BTreeMap<String, Blob> => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StateKind;

    crate::testing::json_round_trips!(
        CompleteExecutionArgs,
        CompleteManyItem,
        FailureReason,
        FailExecutionArgs,
        CancelExecutionArgs,
    );
    crate::testing::answer_round_trips!(
        CompleteExecutionResult,
        CompleteManyOutcome,
        FailOutcome,
        FailExecutionResult,
        CancelExecutionResult,
    );

    #[test]
    fn a_cancellation_without_source_or_fence_is_the_operators() {
        let json = serde_json::json!({ "execution_id": "{fp:7}:550e8400-e29b-41d4-a716-446655440000" });
        let args: CancelExecutionArgs = serde_json::from_value(json).unwrap();
        assert_eq!(args.source, CancelSource::OperatorOverride);
        assert_eq!(args.fence, FenceTriple::NONE);
    }

    #[test]
    fn a_refused_completion_says_why() {
        let outcome = CompleteManyOutcome::from(Err(StateKind::StaleLease.into()));
        let json = serde_json::to_value(outcome).unwrap();
        assert_eq!(json["type"], "refused");
        assert_eq!(json["error"]["code"], "stale_lease");
        assert_eq!(serde_json::to_value(CompleteManyOutcome::from(Ok(()))).unwrap()["type"], "completed");
    }
}
