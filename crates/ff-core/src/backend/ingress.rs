//! Work enters: submission, re-ranking, replay, and the lanes it enters through.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::layer::forward;
use crate::blob::Blob;
use crate::error::{EngineError, ErrorSummary, Result};
use crate::ids::{ExecutionId, LaneId, Namespace};
use crate::policy::{ExecutionPolicy, PolicyDocument};
use crate::state::{LaneState, PublicState};
use crate::time::TimestampMs;
use crate::trace::TraceContext;

/// One unit of work to admit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct CreateExecutionArgs {
    /// The id to use; the engine mints one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// The tenant.
    pub namespace: Namespace,
    /// The queue; registered on first use.
    pub lane_id: LaneId,
    /// Which handler runs it; opaque to the engine.
    pub execution_kind: String,
    /// Input, stored byte for byte.
    #[serde(default)]
    pub input_payload: Blob,
    /// How the input is encoded; opaque to the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
    /// Higher runs first; clamped to 0..=9000.
    #[serde(default)]
    pub priority: i32,
    /// Who submitted it; opaque to the engine.
    #[serde(default)]
    pub creator_identity: String,
    /// Submissions with the same key in the same namespace are one; empty means no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Labels; keys look like `owner.field`.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// The policy as the caller wrote it, decoded when the execution is created and frozen from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyDocument>,
    /// Not claimable before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_until: Option<TimestampMs>,
    /// Expires at this time whatever it is doing; overrides the policy's relative deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_deadline_at: Option<TimestampMs>,
    /// The trace it belongs to; handed to its handlers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<TraceContext>,
}

impl CreateExecutionArgs {
    /// A submission without input, key, tags or policy.
    pub fn new(
        execution_id: impl Into<Option<ExecutionId>>,
        namespace: Namespace,
        lane_id: LaneId,
        execution_kind: impl Into<String>,
    ) -> Self {
        Self {
            execution_id: execution_id.into(),
            namespace,
            lane_id,
            execution_kind: execution_kind.into(),
            input_payload: Blob::empty(),
            payload_encoding: None,
            priority: 0,
            creator_identity: String::new(),
            idempotency_key: None,
            tags: BTreeMap::new(),
            policy: None,
            delay_until: None,
            execution_deadline_at: None,
            trace_context: None,
        }
    }

    /// Whether it names itself, by an id or a key that is remembered, so that a repetition is recognised.
    #[must_use]
    pub fn is_named(&self) -> bool {
        let has_key = || self.idempotency_key.as_ref().is_some_and(|key| !key.is_empty());
        self.execution_id.is_some() || (has_key() && self.remembers_key())
    }

    fn remembers_key(&self) -> bool {
        let window = |policy: ExecutionPolicy| policy.dedup_window();
        self.policy.as_ref().is_none_or(|document| document.decode().ok().and_then(window).is_some())
    }
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CreateExecutionResult {
    /// Admitted.
    Created {
        /// The new execution.
        execution_id: ExecutionId,
        /// `waiting`, or `delayed` when it was given a future start.
        public_state: PublicState,
    },
    /// The id or the idempotency key is known; the stored execution is unchanged.
    Duplicate {
        /// The execution that is there.
        execution_id: ExecutionId,
    },
}

/// What became of one submission among several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum CreateExecutionOutcome {
    /// Admitted.
    Created {
        /// The new execution.
        execution_id: ExecutionId,
        /// `waiting`, or `delayed` when it was given a future start.
        public_state: PublicState,
    },
    /// The id or the idempotency key is known; the stored execution is unchanged.
    Duplicate {
        /// The execution that is there.
        execution_id: ExecutionId,
    },
    /// Not admitted; the other submissions are not affected.
    Refused {
        /// What a single submission would have failed with.
        error: ErrorSummary,
    },
}

impl From<Result<CreateExecutionResult>> for CreateExecutionOutcome {
    fn from(result: Result<CreateExecutionResult>) -> Self {
        match result {
            Ok(CreateExecutionResult::Created { execution_id, public_state }) => {
                Self::Created { execution_id, public_state }
            }
            Ok(CreateExecutionResult::Duplicate { execution_id }) => Self::Duplicate { execution_id },
            Err(error) => Self::Refused { error: ErrorSummary::from(&error) },
        }
    }
}

/// A new rank for a waiting execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ChangePriorityArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Higher runs first; clamped to 0..=9000.
    pub new_priority: i32,
    /// The lane the caller believes it is in; empty means whichever it is in.
    #[serde(default)]
    pub lane_id: String,
}

/// The answer to a change of priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ChangePriorityResult {
    /// The new rank is in force.
    Changed {
        /// Which execution.
        execution_id: ExecutionId,
    },
}

/// Which execution to open again, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ReplayExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Kept in the lineage of the next attempt.
    #[serde(default)]
    pub reason: String,
    /// Kept in the lineage of the next attempt.
    #[serde(default)]
    pub requested_by: String,
}

/// The answer to a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReplayExecutionResult {
    /// Open again; the next claim creates a replay attempt.
    Replayed {
        /// `waiting`, or `waiting_children` for a skipped member with open dependencies.
        public_state: PublicState,
    },
}

/// What a lane should do with work from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SetLaneStateArgs {
    /// The tenant.
    pub namespace: Namespace,
    /// The lane; registered when new.
    pub lane_id: LaneId,
    /// The state to enter.
    pub state: LaneState,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

/// A lane as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct LaneInfo {
    /// The tenant.
    pub namespace: Namespace,
    /// The lane.
    pub lane_id: LaneId,
    /// What it does with work.
    pub state: LaneState,
    /// When it entered that state.
    pub since: TimestampMs,
}

/// Admits work, ranks it and opens it again.
#[async_trait]
#[allow(unused_variables, reason = "default bodies ignore their arguments")]
pub trait Ingress: Send + Sync {
    /// Admits one execution, once per idempotency key and once per id.
    ///
    /// An id outside the deployment's partitions is `Validation(InvalidInput)`. Then a known key, then a known id
    /// answer `Duplicate` before anything else is looked at, and change nothing. Further errors in order:
    /// `Validation(InvalidPolicyJson)`, `Validation(InvalidCapabilities)`, `Validation(InvalidTagKey)`,
    /// `Validation(PayloadTooLarge)`, `State(LaneClosed)`. A start that is not in the future means now; a deadline in
    /// the past is accepted.
    async fn create_execution(&self, args: CreateExecutionArgs) -> Result<CreateExecutionResult> {
        Err(EngineError::Unavailable { op: "create_execution" })
    }

    /// Admits several executions, each as [`create_execution`](Self::create_execution) would; one outcome per
    /// submission, in order. A refused one does not affect the others.
    async fn create_executions(&self, batch: Vec<CreateExecutionArgs>) -> Result<Vec<CreateExecutionOutcome>> {
        Err(EngineError::Unavailable { op: "create_executions" })
    }

    /// Ranks a claimable execution anew; its age still counts. Idempotent.
    ///
    /// Errors in order: `NotFound(execution)`, `Contention(ExecutionNotEligible)` unless claimable now,
    /// `Validation(InvalidInput)` for another lane than its own.
    async fn change_priority(&self, args: ChangePriorityArgs) -> Result<ChangePriorityResult> {
        Err(EngineError::Unavailable { op: "change_priority" })
    }

    /// Opens a terminal execution for a new attempt: result and failure are cleared, retries start over.
    ///
    /// A parent that is not over waits for a spawned child again, in the wait it is in or in its next. A skipped flow member waits for its
    /// impossible dependencies again. Children that it spawned are left behind: they go on, but nothing waits for them, and what they
    /// handed over is gone. Errors in order: `NotFound(execution)`,
    /// `State(ExecutionNotTerminal)` (so a second call finds it), `State(MaxReplaysExhausted)`,
    /// `State(FlowAlreadyTerminal)` when its flow was cancelled. An execution whose purge has begun is not found.
    async fn replay_execution(&self, args: ReplayExecutionArgs) -> Result<ReplayExecutionResult> {
        Err(EngineError::Unavailable { op: "replay_execution" })
    }

    /// Pauses, drains, disables or re-opens a lane of a namespace; answers the lane as it then is.
    ///
    /// Running executions are not touched. Setting the state it already has changes nothing.
    async fn set_lane_state(&self, args: SetLaneStateArgs) -> Result<LaneInfo> {
        Err(EngineError::Unavailable { op: "set_lane_state" })
    }

    /// The lane as it is, or nothing when no work ever entered it.
    async fn describe_lane(&self, namespace: &Namespace, lane_id: &LaneId) -> Result<Option<LaneInfo>> {
        Err(EngineError::Unavailable { op: "describe_lane" })
    }
}

forward! { Ingress,
    create_execution(args: CreateExecutionArgs) -> CreateExecutionResult => SafeIfNamed(args.is_named());
    create_executions(batch: Vec<CreateExecutionArgs>) -> Vec<CreateExecutionOutcome>
        => SafeIfNamed(batch.iter().all(CreateExecutionArgs::is_named));
    change_priority(args: ChangePriorityArgs) -> ChangePriorityResult => Safe;
    replay_execution(args: ReplayExecutionArgs) -> ReplayExecutionResult => OnlyIfUnsent;
    set_lane_state(args: SetLaneStateArgs) -> LaneInfo => Safe;
    describe_lane(namespace: &Namespace, lane_id: &LaneId) -> Option<LaneInfo> => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StateKind;

    crate::testing::json_round_trips!(CreateExecutionArgs, ChangePriorityArgs, ReplayExecutionArgs, SetLaneStateArgs);
    crate::testing::answer_round_trips!(
        CreateExecutionResult,
        CreateExecutionOutcome,
        ChangePriorityResult,
        ReplayExecutionResult,
        LaneInfo,
    );

    #[test]
    fn a_submission_needs_only_where_it_goes_and_what_runs_it() {
        let json = serde_json::json!({ "namespace": "acme", "lane_id": "default", "execution_kind": "mail" });
        let args: CreateExecutionArgs = serde_json::from_value(json).unwrap();
        let namespace = Namespace::new("acme").unwrap();
        assert_eq!(args, CreateExecutionArgs::new(None, namespace, LaneId::new("default").unwrap(), "mail"));
    }

    #[test]
    fn a_submission_is_named_by_its_id_or_by_a_key_that_is_remembered() {
        let (namespace, lane) = (Namespace::new("acme").unwrap(), LaneId::new("default").unwrap());
        let plain = CreateExecutionArgs::new(None, namespace, lane, "mail");
        let keyed = |key: &str, policy: Option<serde_json::Value>| {
            let args = CreateExecutionArgs { idempotency_key: Some(key.to_owned()), ..plain.clone() };
            CreateExecutionArgs { policy: policy.map(PolicyDocument), ..args }
        };
        let window = |ms: i64| Some(serde_json::json!({ "dedup_window_ms": ms }));
        for named in [keyed("k", None), keyed("k", Some(serde_json::json!({}))), keyed("k", window(1))] {
            assert!(named.is_named(), "{named:?}");
        }
        let forgotten = [keyed("k", window(0)), keyed("k", window(-1)), keyed("k", Some(serde_json::json!([])))];
        for unnamed in forgotten.into_iter().chain([plain.clone(), keyed("", None)]) {
            assert!(!unnamed.is_named(), "{unnamed:?}");
        }
        let execution_id = Some(ExecutionId::new(0, uuid::Uuid::from_u128(1)));
        assert!(CreateExecutionArgs { execution_id, ..keyed("k", window(0)) }.is_named());
    }

    #[test]
    fn a_refused_submission_says_why() {
        let outcome = CreateExecutionOutcome::from(Err(StateKind::LaneClosed.into()));
        let json = serde_json::to_value(outcome).unwrap();
        assert_eq!(json["type"], "refused");
        assert_eq!(json["error"]["code"], "lane_closed");
    }
}
