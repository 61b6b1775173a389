//! An execution stays with the worker that owns it, and is taken back when the worker is gone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::claims::Grant;
use super::layer::forward;
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{
    AttemptId, AttemptIndex, ExecutionId, FenceTriple, LaneId, LeaseEpoch, LeaseId, Namespace, WorkerId,
    WorkerInstanceId,
};
use crate::state::{OwnershipState, PublicState};
use crate::time::TimestampMs;
use crate::words::words;

/// A lease after renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct LeaseRenewal {
    /// When it runs out unless renewed again.
    pub expires_at_ms: TimestampMs,
    /// Its epoch, unchanged by renewal.
    pub lease_epoch: LeaseEpoch,
}

/// A renewal by stored proof of ownership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RenewLeaseArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Position of the attempt.
    pub attempt_index: AttemptIndex,
    /// Proof of ownership; required in full.
    #[serde(default)]
    pub fence: FenceTriple,
    /// How long the lease lasts from now; not zero.
    pub lease_ttl_ms: u64,
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RenewLeaseResult {
    /// Extended.
    Renewed {
        /// When it runs out unless renewed again.
        expires_at: TimestampMs,
    },
}

/// A lease to take away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct RevokeLeaseArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Only this lease; absent means whichever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_lease_id: Option<LeaseId>,
    /// Only from this process; absent means from any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_instance_id: Option<WorkerInstanceId>,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

words! {
    /// Why there was nothing to revoke.
    pub enum RevokeNotNeeded {
        /// Revoked before.
        AlreadyRevoked = "already_revoked",
        /// Ran out before.
        AlreadyExpired = "already_expired",
        /// Nobody is recorded as owner.
        NoActiveLease = "no_active_lease",
        /// Another process owns it.
        DifferentWorkerInstanceId = "different_worker_instance_id",
    }
}

/// The answer to a revocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RevokeLeaseResult {
    /// Taken away; the execution waits for a reclaim or a cancel.
    Revoked {
        /// The lease.
        lease_id: LeaseId,
        /// Its epoch.
        lease_epoch: LeaseEpoch,
    },
    /// Nothing changed.
    AlreadySatisfied {
        /// Why.
        reason: RevokeNotNeeded,
    },
}

/// A worker that wants an execution whose lease was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct IssueReclaimGrantArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The logical worker.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// The execution's lane.
    pub lane_id: LaneId,
    /// How long the grant holds; not zero.
    pub grant_ttl_ms: u64,
    /// What the worker can do.
    #[serde(default)]
    pub worker_capabilities: BTreeSet<String>,
}

/// The answer to a request for a reclaim grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum IssueReclaimGrantOutcome {
    /// The worker may reclaim.
    Granted(Grant),
    /// The lease is not lost, or the worker lacks capabilities.
    NotReclaimable {
        /// Which execution.
        execution_id: ExecutionId,
        /// Why; `capability_mismatch: <missing>` for capabilities.
        detail: String,
    },
    /// Reclaimed as often as allowed; nothing changed.
    ReclaimCapExceeded {
        /// Which execution.
        execution_id: ExecutionId,
        /// How often it was reclaimed.
        reclaim_count: u32,
    },
}

/// Consumes a reclaim grant with a new attempt and lease, whose ids the caller mints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ReclaimExecutionArgs {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The logical worker the grant was given to.
    pub worker_id: WorkerId,
    /// The process.
    pub worker_instance_id: WorkerInstanceId,
    /// The execution's lane.
    pub lane_id: LaneId,
    /// Id of the new lease.
    pub lease_id: LeaseId,
    /// How long the lease lasts without renewal; not zero.
    pub lease_ttl_ms: u64,
    /// Id of the new attempt.
    pub attempt_id: AttemptId,
    /// Most reclaims when the policy does not say; absent means 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_reclaim_count: Option<u32>,
    /// Which attempt the caller believes was lost.
    pub current_attempt_index: AttemptIndex,
}

/// The answer to a reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReclaimExecutionOutcome {
    /// The caller owns the execution through a new attempt.
    Claimed {
        /// Proof of ownership, of kind `reclaimed`.
        handle: Handle,
    },
    /// The lease is not lost, or the attempt moved on.
    NotReclaimable {
        /// Which execution.
        execution_id: ExecutionId,
        /// Why.
        detail: String,
    },
    /// Reclaimed as often as allowed; the execution has failed for good.
    ReclaimCapExceeded {
        /// Which execution.
        execution_id: ExecutionId,
        /// The cap that was enforced.
        reclaim_count: u32,
    },
    /// No grant, a consumed or lapsed one, or one of another worker.
    GrantNotFound {
        /// Which execution.
        execution_id: ExecutionId,
    },
}

words! {
    /// Which timer of an execution fired.
    pub enum ExpirePhase {
        /// The attempt ran too long.
        AttemptTimeout = "attempt_timeout",
        /// The execution as a whole is past its deadline.
        ExecutionDeadline = "execution_deadline",
    }
}

/// Position in the listing of expired leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExpiredLeasesCursor {
    /// Expiry of the last entry seen.
    pub expires_at_ms: TimestampMs,
    /// Execution of the last entry seen.
    pub execution_id: ExecutionId,
}

/// Which expired leases to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListExpiredLeasesArgs {
    /// Leases that ran out by this time.
    pub as_of: TimestampMs,
    /// Continue after this position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<ExpiredLeasesCursor>,
    /// Most entries to return; absent means 1000, at most 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only this tenant; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
}

/// A lease that was lost or is overdue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ExpiredLeaseInfo {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The lease.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub lease_epoch: LeaseEpoch,
    /// The process that held it.
    pub worker_instance_id: WorkerInstanceId,
    /// When it ran out, or would have.
    pub expires_at_ms: TimestampMs,
    /// Position of the attempt.
    pub attempt_index: AttemptIndex,
    /// `leased` while overdue and not yet marked, else expired or revoked.
    pub ownership_state: OwnershipState,
}

/// A page of expired leases, by expiry, then execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ListExpiredLeasesResult {
    /// The entries.
    pub entries: Vec<ExpiredLeaseInfo>,
    /// Where to continue; absent when there is nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<ExpiredLeasesCursor>,
}

/// What a worker holds, and how long it waits to hear that it lost any of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct AwaitLostLeasesArgs {
    /// The process that asks.
    pub worker_instance_id: WorkerInstanceId,
    /// What it holds; at most 1024.
    pub handles: Vec<Handle>,
    /// How long to wait while everything is still held; 0 means not at all, at most 30,000.
    pub max_wait_ms: u64,
}

/// An attempt that its worker no longer owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct LostLease {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Position of the attempt that was lost.
    pub attempt_index: AttemptIndex,
    /// How.
    pub loss: LeaseLoss,
}

/// How an attempt was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum LeaseLoss {
    /// The execution was cancelled.
    Cancelled {
        /// Why, for people.
        reason: String,
    },
    /// The attempt is over, or parked, in another way.
    Ended {
        /// What became of the execution.
        public_state: PublicState,
    },
    /// The lease ran out, whether or not anybody has marked it yet.
    Expired,
    /// An operator took the lease away.
    Revoked {
        /// Why, for people.
        reason: String,
    },
    /// Somebody has taken the execution since.
    Superseded,
    /// The execution is gone.
    Missing,
}

/// Keeps an execution with the worker that owns it, and takes it back when the worker is gone.
#[async_trait]
#[allow(unused_variables, reason = "default bodies ignore their arguments")]
pub trait Leases: Send + Sync {
    /// Extends the lease by the handle's TTL; calling again extends again. Never revives an expired lease.
    ///
    /// Errors in order: those of the handle, `NotFound(execution)`, `Contention(ExecutionNotActive)`,
    /// `State(LeaseRevoked)`, `State(LeaseExpired)`, `State(StaleLease)`.
    async fn renew(&self, handle: &Handle) -> Result<LeaseRenewal>;

    /// Extends the lease by the given TTL; calling again extends again. Never revives an expired lease.
    ///
    /// Errors in order: `Validation(InvalidInput)` for a missing or partial fence or a zero TTL, then as
    /// [`renew`](Self::renew).
    async fn renew_lease(&self, args: RenewLeaseArgs) -> Result<RenewLeaseResult> {
        Err(EngineError::Unavailable { op: "renew_lease" })
    }

    /// Marks an overdue lease as reclaimable; does nothing when there is none.
    async fn mark_lease_expired_if_due(&self, execution_id: ExecutionId) -> Result<()> {
        Err(EngineError::Unavailable { op: "mark_lease_expired_if_due" })
    }

    /// Takes the lease away at once without ending the execution; a second call answers `AlreadySatisfied`.
    ///
    /// Errors in order: `NotFound(execution)`, `Contention(ExecutionNotActive)`, `Contention(NoActiveLease)`,
    /// `State(StaleLease)` when another lease was expected.
    async fn revoke_lease(&self, args: RevokeLeaseArgs) -> Result<RevokeLeaseResult> {
        Err(EngineError::Unavailable { op: "revoke_lease" })
    }

    /// Permits one worker to reclaim an execution whose lease expired or was revoked.
    ///
    /// Errors in order: `Validation(InvalidInput)` for a zero grant, `NotFound(execution)`, `State(GrantAlreadyExists)`
    /// (also for the same worker), `Validation(InvalidCapabilities)`; the other refusals are outcomes.
    async fn issue_reclaim_grant(&self, args: IssueReclaimGrantArgs) -> Result<IssueReclaimGrantOutcome> {
        Err(EngineError::Unavailable { op: "issue_reclaim_grant" })
    }

    /// Consumes a reclaim grant: retires the lost attempt and starts a new one, or fails the execution at the cap.
    ///
    /// Errors in order: `Validation(InvalidInput)` for a zero lease, `NotFound(execution)`; the other refusals are
    /// outcomes. A second call finds `NotReclaimable` or `GrantNotFound`.
    async fn reclaim_execution(&self, args: ReclaimExecutionArgs) -> Result<ReclaimExecutionOutcome> {
        Err(EngineError::Unavailable { op: "reclaim_execution" })
    }

    /// Acts on a timer that is really due; does nothing when it is not, or when the execution is missing or over.
    ///
    /// A deadline ends the execution as `expired` from any state. An attempt timeout retries by the policy, and ends
    /// the execution as `expired` when no retry is left.
    async fn expire_execution(&self, execution_id: ExecutionId, phase: ExpirePhase, now: TimestampMs) -> Result<()> {
        Err(EngineError::Unavailable { op: "expire_execution" })
    }

    /// Leases that are overdue, expired or revoked, over all partitions, by expiry, then execution.
    async fn list_expired_leases(&self, args: ListExpiredLeasesArgs) -> Result<ListExpiredLeasesResult> {
        Err(EngineError::Unavailable { op: "list_expired_leases" })
    }

    /// Which of these handles no longer own their attempt, in their order: at once if there are any, else as soon as somebody else than
    /// their owner ends one (a cancellation, an operator, a timeout, a deadline, another worker) or one runs out of time. Empty
    /// when all are owned after the wait, or when this process shuts down.
    ///
    /// Errors in order: `Validation(InvalidInput)` for a wait of more than 30 seconds or for more than 1024 handles, those of
    /// a handle, `Validation(InvalidInput)` for a handle of another worker instance.
    async fn await_lost_leases(&self, args: AwaitLostLeasesArgs) -> Result<Vec<LostLease>> {
        Err(EngineError::Unavailable { op: "await_lost_leases" })
    }
}

forward! { Leases,
    renew(handle: &Handle) -> LeaseRenewal => Safe;
    renew_lease(args: RenewLeaseArgs) -> RenewLeaseResult => Safe;
    mark_lease_expired_if_due(execution_id: ExecutionId) -> () => Safe;
    revoke_lease(args: RevokeLeaseArgs) -> RevokeLeaseResult => SafeIfNamed(args.expected_lease_id.is_some());
    issue_reclaim_grant(args: IssueReclaimGrantArgs) -> IssueReclaimGrantOutcome => OnlyIfUnsent;
    reclaim_execution(args: ReclaimExecutionArgs) -> ReclaimExecutionOutcome => OnlyIfUnsent;
    expire_execution(execution_id: ExecutionId, phase: ExpirePhase, now: TimestampMs) -> () => Safe;
    list_expired_leases(args: ListExpiredLeasesArgs) -> ListExpiredLeasesResult => Safe;
    await_lost_leases(args: AwaitLostLeasesArgs) -> Vec<LostLease> => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::testing::json_round_trips!(
        RenewLeaseArgs,
        RevokeLeaseArgs,
        IssueReclaimGrantArgs,
        ReclaimExecutionArgs,
        ListExpiredLeasesArgs,
        ExpiredLeasesCursor,
        AwaitLostLeasesArgs,
    );
    crate::testing::answer_round_trips!(
        LeaseRenewal,
        RenewLeaseResult,
        RevokeLeaseResult,
        IssueReclaimGrantOutcome,
        ReclaimExecutionOutcome,
        ExpiredLeaseInfo,
        ListExpiredLeasesResult,
        LostLease,
    );

    #[test]
    fn a_revocation_that_was_not_needed_says_why_in_one_word() {
        let answer = RevokeLeaseResult::AlreadySatisfied { reason: RevokeNotNeeded::AlreadyRevoked };
        let json = serde_json::json!({ "type": "already_satisfied", "reason": "already_revoked" });
        assert_eq!(serde_json::to_value(answer).unwrap(), json);
    }
}
