//! Work is found, reserved and taken, or held back.

mod args;

pub use args::{
    AdmissionBlock, BlockExecutionForAdmissionArgs, BlockExecutionForAdmissionOutcome, BlockRouteArgs,
    BlockRouteOutcome, ClaimExecutionArgs, ClaimExecutionResult, ClaimForWorkerArgs, ClaimForWorkerOutcome,
    ClaimGrantOutcome, ClaimPolicy, ClaimResumedExecutionArgs, ClaimResumedExecutionResult, ClaimedExecution,
    ClaimedResumedExecution, Grant, GrantKind, IssueClaimGrantArgs, IssueClaimGrantOutcome, IssueGrantAndClaimArgs,
    ResumeToken, ScanEligibleArgs,
};

use async_trait::async_trait;

use super::layer::forward;
use crate::capability::CapabilitySet;
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{ExecutionId, LaneId};
use crate::time::TimestampMs;

/// Brings executions to workers: kind and capabilities first, then budgets, then quotas, then the lease.
#[async_trait]
#[allow(unused_variables, reason = "default bodies ignore their arguments")]
pub trait Claims: Send + Sync {
    /// Finds and takes the best admissible execution of a lane; nothing when none is waiting.
    ///
    /// The handle is `Fresh`, `Resumed` for a woken attempt, `Reclaimed` for one whose lease was lost. Candidates lost
    /// to others are skipped, work of a kind that the policy does not name is left to others. Waits up to the policy's
    /// `max_wait_ms`. Errors: `Validation(InvalidInput)` for malformed capabilities or kinds or a zero lease, transport.
    /// Every call may take another execution.
    async fn claim(&self, lane: &LaneId, capabilities: &CapabilitySet, policy: ClaimPolicy) -> Result<Option<Handle>>;

    /// Takes up to `count` executions, each as [`claim`](Self::claim) would; waits only while there is none at all.
    async fn claim_many(
        &self,
        lane: &LaneId,
        capabilities: &CapabilitySet,
        policy: ClaimPolicy,
        count: u32,
    ) -> Result<Vec<Handle>> {
        Err(EngineError::Unavailable { op: "claim_many" })
    }

    /// Reserves the best admissible execution of a lane for a worker, which consumes the grant by its kind.
    ///
    /// Parks what is denied. Errors: `Validation(InvalidInput)` for malformed capabilities or kinds or a zero grant, transport.
    /// Every call may reserve another execution.
    async fn claim_for_worker(&self, args: ClaimForWorkerArgs) -> Result<ClaimForWorkerOutcome> {
        Err(EngineError::Unavailable { op: "claim_for_worker" })
    }

    /// The best claimable executions of one lane in one partition, best first; reserves nothing.
    ///
    /// Errors: `Validation(InvalidInput)` for a malformed partition.
    async fn scan_eligible_executions(&self, args: ScanEligibleArgs) -> Result<Vec<ExecutionId>> {
        Err(EngineError::Unavailable { op: "scan_eligible_executions" })
    }

    /// Reserves one claimable execution for one worker until the grant lapses.
    ///
    /// Errors in order: `Validation(InvalidInput)` for a zero grant, `NotFound(execution)`,
    /// `Contention(ExecutionNotEligible)`, `State(GrantAlreadyExists)` (also for the same worker),
    /// `Contention(ExecutionNotInEligibleSet)` for another lane, `Validation(InvalidCapabilities)`,
    /// `Validation(CapabilityMismatch)`.
    async fn issue_claim_grant(&self, args: IssueClaimGrantArgs) -> Result<IssueClaimGrantOutcome> {
        Err(EngineError::Unavailable { op: "issue_claim_grant" })
    }

    /// Consumes a claim grant: a new attempt under a new lease. The same lease id again gets the same answer.
    ///
    /// Errors in order: `Validation(InvalidInput)` for a zero lease, `NotFound(execution)`,
    /// `Contention(ExecutionNotLeaseable)` unless runnable, `Contention(LeaseConflict)`,
    /// `Contention(ExecutionNotLeaseable)` unless claimable now, `Conflict(ActiveAttemptExists)`,
    /// `Contention(UseClaimResumedExecution)`, `Contention(InvalidClaimGrant)`, `Contention(ClaimGrantExpired)`,
    /// `Contention(ExecutionNotLeaseable)` for another attempt index.
    async fn claim_execution(&self, args: ClaimExecutionArgs) -> Result<ClaimExecutionResult> {
        Err(EngineError::Unavailable { op: "claim_execution" })
    }

    /// Consumes a grant to continue the interrupted attempt under a new lease. The same lease id again gets the same
    /// answer.
    ///
    /// Errors in order: `Validation(InvalidInput)` for a zero lease, `NotFound(execution)`,
    /// `Contention(ExecutionNotLeaseable)` unless runnable, `Contention(NotAResumedExecution)`,
    /// `Contention(ExecutionNotLeaseable)` unless claimable now, `Contention(InvalidClaimGrant)`,
    /// `Contention(ClaimGrantExpired)`, `Contention(ExecutionNotLeaseable)` for another attempt index.
    async fn claim_resumed_execution(&self, args: ClaimResumedExecutionArgs) -> Result<ClaimResumedExecutionResult> {
        Err(EngineError::Unavailable { op: "claim_resumed_execution" })
    }

    /// Consumes a resume grant and answers a `Resumed` handle; nothing when the execution is no longer resumable.
    ///
    /// Errors: `NotFound(execution)`, `Contention(ClaimGrantExpired)`, `Validation(InvalidInput)` for a zero lease.
    async fn claim_from_resume_grant(&self, token: ResumeToken) -> Result<Option<Handle>>;

    /// Gives one specific execution to the operator at once, past capabilities, budgets and quotas.
    ///
    /// An interrupted attempt is continued, else a new one starts. Errors in order: `Validation(InvalidInput)` for a
    /// zero lease, `NotFound(execution)`, `Contention(ExecutionNotEligible)` unless runnable,
    /// `Contention(LeaseConflict)`, `Conflict(ActiveAttemptExists)`, `State(GrantAlreadyExists)`,
    /// `Contention(ExecutionNotInEligibleSet)`, `Contention(ExecutionNotEligible)` unless claimable now.
    async fn issue_grant_and_claim(&self, args: IssueGrantAndClaimArgs) -> Result<ClaimGrantOutcome> {
        Err(EngineError::Unavailable { op: "issue_grant_and_claim" })
    }

    /// Parks a claimable execution until a worker with its capabilities appears; `Rejected` when it is not claimable
    /// now.
    ///
    /// Errors in order: `Validation(InvalidBlockingReason)`, `NotFound(execution)`.
    async fn block_route(&self, args: BlockRouteArgs) -> Result<BlockRouteOutcome> {
        Err(EngineError::Unavailable { op: "block_route" })
    }

    /// Parks a claimable execution for one of the reasons of [`AdmissionBlock`]; `Rejected` when it is not claimable
    /// now.
    ///
    /// Errors in order: `Validation(InvalidBlockingReason)`, `NotFound(execution)`.
    async fn block_execution_for_admission(
        &self,
        args: BlockExecutionForAdmissionArgs,
    ) -> Result<BlockExecutionForAdmissionOutcome> {
        Err(EngineError::Unavailable { op: "block_execution_for_admission" })
    }

    /// Makes a parked execution claimable again, if it is still parked for that reason; an empty reason means any.
    ///
    /// Errors in order: `Validation(InvalidBlockingReason)`, `NotFound(execution)`, `Contention(ExecutionNotEligible)`
    /// (so a second call finds it).
    async fn unblock_execution(
        &self,
        execution_id: ExecutionId,
        expected_reason: &str,
        now: TimestampMs,
    ) -> Result<()> {
        Err(EngineError::Unavailable { op: "unblock_execution" })
    }
}

forward! { Claims,
    claim(lane: &LaneId, capabilities: &CapabilitySet, policy: ClaimPolicy) -> Option<Handle> => OnlyIfUnsent;
    claim_many(lane: &LaneId, capabilities: &CapabilitySet, policy: ClaimPolicy, count: u32) -> Vec<Handle>
        => OnlyIfUnsent;
    claim_for_worker(args: ClaimForWorkerArgs) -> ClaimForWorkerOutcome => OnlyIfUnsent;
    scan_eligible_executions(args: ScanEligibleArgs) -> Vec<ExecutionId> => Safe;
    issue_claim_grant(args: IssueClaimGrantArgs) -> IssueClaimGrantOutcome => OnlyIfUnsent;
    claim_execution(args: ClaimExecutionArgs) -> ClaimExecutionResult => Safe;
    claim_resumed_execution(args: ClaimResumedExecutionArgs) -> ClaimResumedExecutionResult => Safe;
    claim_from_resume_grant(token: ResumeToken) -> Option<Handle> => OnlyIfUnsent;
    issue_grant_and_claim(args: IssueGrantAndClaimArgs) -> ClaimGrantOutcome => OnlyIfUnsent;
    block_route(args: BlockRouteArgs) -> BlockRouteOutcome => OnlyIfUnsent;
    block_execution_for_admission(args: BlockExecutionForAdmissionArgs) -> BlockExecutionForAdmissionOutcome
        => OnlyIfUnsent;
    unblock_execution(execution_id: ExecutionId, expected_reason: &str, now: TimestampMs) -> () => OnlyIfUnsent;
}
