//! Arguments and results of finding and claiming work.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::handle::Handle;
use crate::ids::{
    AttemptId, AttemptIndex, ExecutionId, LaneId, LeaseEpoch, LeaseId, Namespace, WorkerId, WorkerInstanceId,
};
use crate::partition::PartitionKey;
use crate::state::{AttemptType, BlockingReason, EligibilityState};
use crate::time::TimestampMs;
use crate::words::words;

/// Who claims, for how long, and where it may look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ClaimPolicy {
    /// The logical worker.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// How long the lease lasts without renewal; not zero.
    pub lease_ttl_ms: u64,
    /// How long to wait for work; absent means not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<u64>,
    /// Tenants to serve; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<BTreeSet<Namespace>>,
    /// Kinds to serve; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeSet<String>>,
}

impl ClaimPolicy {
    /// Claims any kind of work for any tenant without waiting.
    #[must_use]
    pub const fn new(worker_id: WorkerId, worker_instance_id: WorkerInstanceId, lease_ttl_ms: u64) -> Self {
        Self { worker_id, worker_instance_id, lease_ttl_ms, max_wait_ms: None, namespaces: None, kinds: None }
    }
}

words! {
    /// What a grant permits.
    pub enum GrantKind {
        /// A fresh attempt.
        Claim = "claim",
        /// The interrupted attempt, continued.
        Resume = "resume",
        /// A new attempt in place of one whose lease was lost.
        Reclaim = "reclaim",
    }
}

/// A single-use permission for one worker to take one execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// What it permits.
    pub kind: GrantKind,
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Where the execution lives.
    pub partition_key: PartitionKey,
    /// Identity of the grant; opaque to callers.
    pub grant_key: String,
    /// When it lapses, by the store's clock.
    pub expires_at_ms: TimestampMs,
    /// The execution's lane.
    pub lane_id: LaneId,
}

/// A resume grant and the worker that consumes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ResumeToken {
    /// The grant.
    pub grant: Grant,
    /// The logical worker the grant was given to.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// How long the lease lasts without renewal; not zero.
    pub lease_ttl_ms: u64,
}

/// Which claimable executions to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ScanEligibleArgs {
    /// The lane.
    pub lane_id: LaneId,
    /// The partition.
    pub partition: PartitionKey,
    /// Most ids to return; zero returns none.
    pub limit: u32,
    /// Tenants to look at; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<BTreeSet<Namespace>>,
}

/// A reservation of one claimable execution for one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct IssueClaimGrantArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The lane it is expected in.
    pub lane_id: LaneId,
    /// The logical worker.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// What the worker can do.
    #[serde(default)]
    pub worker_capabilities: BTreeSet<String>,
    /// How long the reservation holds; not zero.
    pub grant_ttl_ms: u64,
}

/// The answer to a request for a claim grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum IssueClaimGrantOutcome {
    /// Reserved.
    Granted {
        /// Which execution.
        execution_id: ExecutionId,
    },
}

/// A worker that asks the scheduler for work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ClaimForWorkerArgs {
    /// The lane to serve.
    pub lane_id: LaneId,
    /// The logical worker.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// What the worker can do.
    #[serde(default)]
    pub worker_capabilities: BTreeSet<String>,
    /// How long the grant holds; not zero.
    pub grant_ttl_ms: u64,
    /// Tenants to serve; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<BTreeSet<Namespace>>,
    /// Kinds to serve; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeSet<String>>,
}

/// The scheduler's answer to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClaimForWorkerOutcome {
    /// Nothing admissible is waiting.
    NoWork,
    /// One execution is reserved; the grant's kind says how to consume it.
    Granted(Grant),
}

/// Consumes a claim grant with a new attempt and lease, whose ids the caller mints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ClaimExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The logical worker the grant was given to.
    pub worker_id: WorkerId,
    /// The process the grant was given to.
    pub worker_instance_id: WorkerInstanceId,
    /// The execution's lane.
    pub lane_id: LaneId,
    /// Id of the lease; the same id again gets the same answer.
    pub lease_id: LeaseId,
    /// How long the lease lasts without renewal; not zero.
    pub lease_ttl_ms: u64,
    /// Id of the attempt.
    pub attempt_id: AttemptId,
    /// How many attempts the caller believes there were so far.
    pub expected_attempt_index: AttemptIndex,
    /// Wall clock for the attempt; absent means the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_timeout_ms: Option<u64>,
    /// A new deadline of the execution; absent leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_deadline_at: Option<TimestampMs>,
}

/// Ownership of an execution through a new attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ClaimedExecution {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub lease_epoch: LeaseEpoch,
    /// Position of the attempt.
    pub attempt_index: AttemptIndex,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Why the attempt exists.
    pub attempt_type: AttemptType,
    /// When the lease runs out unless renewed.
    pub lease_expires_at: TimestampMs,
    /// Proof of ownership for every later call.
    pub handle: Handle,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClaimExecutionResult {
    /// The caller owns the execution.
    Claimed(ClaimedExecution),
}

/// Consumes a grant to continue an interrupted attempt under a new lease, whose id the caller mints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ClaimResumedExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The logical worker the grant was given to.
    pub worker_id: WorkerId,
    /// The process the grant was given to.
    pub worker_instance_id: WorkerInstanceId,
    /// The execution's lane.
    pub lane_id: LaneId,
    /// Id of the lease; the same id again gets the same answer.
    pub lease_id: LeaseId,
    /// How long the lease lasts without renewal; not zero.
    pub lease_ttl_ms: u64,
    /// Which attempt the caller believes is interrupted.
    pub current_attempt_index: AttemptIndex,
    /// Wall clock left for the attempt; absent means what was saved when it was parked, zero means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_attempt_timeout_ms: Option<u64>,
}

/// Ownership of an execution through the attempt it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ClaimedResumedExecution {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub lease_epoch: LeaseEpoch,
    /// Position of the attempt.
    pub attempt_index: AttemptIndex,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// When the lease runs out unless renewed.
    pub lease_expires_at: TimestampMs,
    /// Proof of ownership for every later call.
    pub handle: Handle,
}

/// The answer to a resumed claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClaimResumedExecutionResult {
    /// The caller owns the execution.
    Claimed(ClaimedResumedExecution),
}

/// An operator who takes one specific execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct IssueGrantAndClaimArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The lane it is expected in.
    pub lane_id: LaneId,
    /// How long the lease lasts without renewal; not zero.
    pub lease_duration_ms: u64,
}

/// Ownership as an operator gets it, whether the attempt is new or continued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ClaimGrantOutcome {
    /// The lease.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub lease_epoch: LeaseEpoch,
    /// Position of the attempt.
    pub attempt_index: AttemptIndex,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Proof of ownership for every later call.
    pub handle: Handle,
}

words! {
    /// Why an execution is held back before it can be claimed.
    pub enum AdmissionBlock {
        /// A budget is spent.
        WaitingForBudget = "waiting_for_budget",
        /// A quota is full.
        WaitingForQuota = "waiting_for_quota",
        /// No live worker handles the kind and has the capabilities.
        WaitingForCapableWorker = "waiting_for_capable_worker",
        /// Held by a person.
        PausedByOperator = "paused_by_operator",
        /// Held by a rule.
        PausedByPolicy = "paused_by_policy",
    }
}

impl AdmissionBlock {
    /// The eligibility that goes with the reason.
    #[must_use]
    pub const fn eligibility(self) -> EligibilityState {
        match self {
            Self::WaitingForBudget => EligibilityState::BlockedByBudget,
            Self::WaitingForQuota => EligibilityState::BlockedByQuota,
            Self::WaitingForCapableWorker => EligibilityState::BlockedByRoute,
            Self::PausedByOperator => EligibilityState::BlockedByOperator,
            Self::PausedByPolicy => EligibilityState::BlockedByLaneState,
        }
    }
}

impl From<AdmissionBlock> for BlockingReason {
    fn from(block: AdmissionBlock) -> Self {
        match block {
            AdmissionBlock::WaitingForBudget => Self::WaitingForBudget,
            AdmissionBlock::WaitingForQuota => Self::WaitingForQuota,
            AdmissionBlock::WaitingForCapableWorker => Self::WaitingForCapableWorker,
            AdmissionBlock::PausedByOperator => Self::PausedByOperator,
            AdmissionBlock::PausedByPolicy => Self::PausedByPolicy,
        }
    }
}

/// An execution that no live worker can serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct BlockRouteArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The lane it is expected in.
    pub lane_id: LaneId,
    /// Must be `waiting_for_capable_worker`.
    pub reason_code: String,
    /// For people.
    #[serde(default)]
    pub reason_detail: String,
}

/// The answer to parking an execution for its route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum BlockRouteOutcome {
    /// Parked.
    Blocked {
        /// Which execution.
        execution_id: ExecutionId,
    },
    /// It is not claimable now; nothing changed.
    Rejected {
        /// In which state it is.
        message: String,
    },
}

/// An execution that admission denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct BlockExecutionForAdmissionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The lane it is expected in.
    pub lane_id: LaneId,
    /// One of the words of [`AdmissionBlock`].
    pub reason: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_detail: Option<String>,
}

/// The answer to parking an execution for admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum BlockExecutionForAdmissionOutcome {
    /// Parked.
    Blocked {
        /// Which execution.
        execution_id: ExecutionId,
        /// Why.
        reason: AdmissionBlock,
    },
    /// It is not claimable now; nothing changed.
    Rejected {
        /// In which state it is.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::testing::json_round_trips!(
        ClaimPolicy,
        Grant,
        ResumeToken,
        ScanEligibleArgs,
        IssueClaimGrantArgs,
        ClaimForWorkerArgs,
        ClaimExecutionArgs,
        ClaimResumedExecutionArgs,
        IssueGrantAndClaimArgs,
        BlockRouteArgs,
        BlockExecutionForAdmissionArgs,
    );
    crate::testing::answer_round_trips!(
        IssueClaimGrantOutcome,
        ClaimForWorkerOutcome,
        ClaimExecutionResult,
        ClaimResumedExecutionResult,
        ClaimGrantOutcome,
        BlockRouteOutcome,
        BlockExecutionForAdmissionOutcome,
    );

    #[test]
    fn an_admission_block_has_the_word_of_its_blocking_reason() {
        for block in AdmissionBlock::ALL {
            assert_eq!(block.as_str(), BlockingReason::from(*block).as_str());
        }
    }

    #[test]
    fn no_work_is_only_a_tag() {
        let json = serde_json::to_value(ClaimForWorkerOutcome::NoWork).unwrap();
        assert_eq!(json, serde_json::json!({ "type": "no_work" }));
    }
}
