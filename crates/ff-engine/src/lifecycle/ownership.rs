//! Taking, checking and giving up ownership.

use ff_core::backend::subscriptions::{LeaseChange, ReleaseReason};
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{AttemptId, AttemptIndex, FenceTriple, LeaseEpoch, LeaseFence};
use ff_core::rules::fence::{CancelSource, FenceRule, Ownership, Presented, check_full};
use ff_core::rules::replay::{Parked, PauseMarker};
use ff_core::rules::retry::reclaim_delay_ms;
use ff_core::state::{AttemptLifecycle, AttemptType, StreamCloseReason};
use ff_core::{EngineError, Result};

use super::{Subject, policy};
use crate::key::Key;
use crate::records::{
    Attempt, Definition, Execution, Fence, Lineage, ParkMarker, PendingLineage, Release, Settlement, StreamHead, Taker,
};
use crate::store::Tx;

/// What the rules look at.
pub(crate) fn stored_ownership(fence: &Fence) -> Ownership {
    Ownership {
        lifecycle_phase: fence.state.lifecycle_phase,
        ownership_state: fence.state.ownership_state,
        terminal_outcome: fence.state.terminal_outcome,
        lease_id: fence.lease_id,
        lease_epoch: fence.epoch,
        attempt_id: fence.attempt_id,
        attempt_index: fence.attempt_index,
        lease_expires_at: fence.lease_expires_at,
    }
}

/// What the replay table looks at.
pub(crate) fn parked(execution: &Execution) -> Parked {
    Parked {
        ownership: stored_ownership(&execution.ownership()),
        attempt_state: execution.state().attempt_state,
        retry_of: match &execution.pending_lineage {
            Some(PendingLineage::Retry { previous, .. }) => Some(*previous),
            _ => None,
        },
        delay_until: match (&execution.park_marker, &execution.pending_lineage) {
            (Some(ParkMarker::WorkerDelay { until }), _) => Some(*until),
            (_, Some(PendingLineage::Retry { at, .. })) => Some(*at),
            _ => None,
        },
        pause: match execution.park_marker {
            Some(ParkMarker::WorkerDelay { .. }) => Some(PauseMarker::WorkerDelay),
            Some(ParkMarker::WaitingChildren) => Some(PauseMarker::WaitingChildren),
            None => None,
        },
    }
}

/// Reads a fence as a caller presents it.
pub(crate) fn fenced(
    fence: FenceTriple,
    attempt_index: Option<AttemptIndex>,
    source: &CancelSource,
    rule: FenceRule,
) -> Result<Presented> {
    Presented::read(fence, attempt_index, source, rule)
}

/// The full fence check of a write. A lease found expired is marked so in this commit, and the inner result refuses.
pub(crate) async fn fence_check(
    tx: &mut dyn Tx,
    subject: &mut Subject,
    presented: Presented,
) -> Result<Result<LeaseFence, EngineError>> {
    let stored = stored_ownership(&subject.execution.ownership());
    match check_full(&stored, presented, tx.now()) {
        Ok(fence) => Ok(Ok(fence)),
        Err(refusal) => {
            if refusal.marks_expired() {
                mark_expired(tx, subject).await?;
            }
            Ok(Err(refusal.into()))
        }
    }
}

/// Marks an overdue lease as expired: the attempt is orphaned, its stream closes, claims may take it over after a backoff.
pub(crate) async fn mark_expired(tx: &mut dyn Tx, subject: &mut Subject) -> Result<()> {
    let now = tx.now();
    let id = subject.execution.id;
    let backoff = policy(tx, id).await?.and_then(|policy| policy.reclaim_backoff).unwrap_or_default();
    let delay = reclaim_delay_ms(backoff, subject.execution.consecutive_reclaims);
    subject.execution.expire_lease(now.plus(delay), now);
    close_stream(tx, &subject.execution, StreamCloseReason::LeaseExpired).await?;
    if let Some(lease) = &subject.execution.lease {
        let change = LeaseChange::Expired {
            lease_id: lease.id,
            lease_epoch: subject.execution.epoch,
            prev_owner: lease.worker_instance_id.clone(),
        };
        subject.emit_lease(tx, change);
    }
    subject.save(tx);
    Ok(())
}

/// Closes the stream of the current attempt, making an empty one if none was written, so that readers see the end.
pub(crate) async fn close_stream(tx: &mut dyn Tx, execution: &Execution, reason: StreamCloseReason) -> Result<()> {
    let now = tx.now();
    let key = Key::stream_head(execution.id, execution.attempt_index);
    let mut head = tx
        .get::<StreamHead>(key)
        .await?
        .unwrap_or_else(|| StreamHead::open(execution.id, execution.attempt_index, now));
    head.close(reason, now);
    tx.put(head);
    Ok(())
}

/// How ownership changes hands.
pub(crate) enum Handover {
    /// A claim creates a new attempt.
    Fresh {
        /// Its id.
        attempt_id: AttemptId,
    },
    /// A claim continues the same attempt.
    Resumed,
    /// A lost attempt is retired and a new one created.
    Reclaimed {
        /// Its id.
        attempt_id: AttemptId,
    },
}

/// Gives the execution to a worker: state, attempt, timeout and event. Says what kind of attempt runs now.
///
/// `attempt_timeout_ms` overrides the policy for a fresh attempt; a resumed one gets `time_left_ms`, or what was left.
pub(crate) async fn hand_over(
    tx: &mut dyn Tx,
    subject: &mut Subject,
    taker: Taker,
    handover: Handover,
    attempt_timeout_ms: Option<u64>,
) -> Result<AttemptType> {
    let now = tx.now();
    let id = subject.execution.id;
    let policy_timeout = match (attempt_timeout_ms, &handover) {
        (Some(ms), _) => Some(ms),
        (None, Handover::Resumed) => subject.execution.attempt_time_left_ms,
        (None, _) => policy_timeout(tx, subject).await?,
    };
    let lost_epoch = matches!(handover, Handover::Reclaimed { .. }).then_some(subject.execution.epoch);
    let kind = match handover {
        Handover::Fresh { attempt_id } => {
            let (kind, lineage) = subject.execution.claim(taker, attempt_id, now);
            start_attempt(tx, &subject.execution, kind, lineage);
            kind
        }
        Handover::Resumed => {
            subject.execution.resume_claim(taker, now);
            resume_attempt(tx, &subject.execution).await?
        }
        Handover::Reclaimed { attempt_id } => {
            let previous = subject.execution.attempt_index;
            let reason = if subject.execution.lease.as_ref().is_some_and(|lease| lease.revoked.is_some()) {
                "lease_revoked"
            } else {
                "lease_expired"
            };
            retire_attempt(tx, &subject.execution, reason).await?;
            subject.execution.reclaim(taker, attempt_id, now);
            let lineage = Lineage { reason: reason.to_owned(), requested_by: None, previous: Some(previous) };
            start_attempt(tx, &subject.execution, AttemptType::Reclaim, Some(lineage));
            AttemptType::Reclaim
        }
    };
    subject.execution.arm_attempt_timeout(policy_timeout, now);
    if !is_on(Fault::GrantKept) {
        tx.delete(Key::grant(id));
    }
    emit_acquired(tx, subject, lost_epoch);
    subject.save(tx);
    Ok(kind)
}

async fn policy_timeout(tx: &mut dyn Tx, subject: &Subject) -> Result<Option<u64>> {
    let definition = tx.get::<Definition>(Key::definition(subject.execution.id)).await?;
    Ok(definition.and_then(|d| d.policy).and_then(|p| p.timeout_policy).and_then(|t| t.attempt_timeout_ms))
}

fn emit_acquired(tx: &mut dyn Tx, subject: &Subject, lost_epoch: Option<LeaseEpoch>) {
    let execution = &subject.execution;
    let Some(lease) = &execution.lease else { return };
    let change = match lost_epoch {
        Some(prev_lease_epoch) => LeaseChange::Reclaimed {
            prev_lease_epoch,
            new_lease_id: lease.id,
            new_lease_epoch: execution.epoch,
            attempt_index: execution.attempt_index,
            new_owner: lease.worker_instance_id.clone(),
        },
        None => LeaseChange::Acquired {
            lease_id: lease.id,
            lease_epoch: execution.epoch,
            attempt_index: execution.attempt_index,
            worker_instance_id: lease.worker_instance_id.clone(),
        },
    };
    subject.emit_lease(tx, change);
}

/// Records a new attempt for the current lease.
fn start_attempt(tx: &mut dyn Tx, execution: &Execution, kind: AttemptType, lineage: Option<Lineage>) {
    let (Some(lease), Some(id)) = (&execution.lease, execution.attempt_id) else { return };
    let now = tx.now();
    tx.put(Attempt {
        execution: execution.id,
        index: execution.attempt_index,
        id,
        attempt_type: kind,
        lifecycle: AttemptLifecycle::Started,
        lease_id: lease.id,
        lease_epoch: execution.epoch,
        worker_id: lease.worker_id.clone(),
        worker_instance_id: lease.worker_instance_id.clone(),
        created_at: now,
        started_at: now,
        suspended_at: None,
        resumed_at: None,
        ended_at: None,
        reason: None,
        category: None,
        detail: None,
        lineage,
        taken: false,
    });
}

async fn resume_attempt(tx: &mut dyn Tx, execution: &Execution) -> Result<AttemptType> {
    let key = Key::attempt(execution.id, execution.attempt_index);
    let Some(mut attempt) = tx.get::<Attempt>(key).await? else {
        return Err(EngineError::Bug(ff_core::error::BugKind::DanglingReference));
    };
    if let Some(lease) = &execution.lease {
        let (worker, instance) = (lease.worker_id.clone(), lease.worker_instance_id.clone());
        attempt.resume(lease.id, execution.epoch, worker, instance, tx.now());
    }
    let kind = attempt.attempt_type;
    tx.put(attempt);
    Ok(kind)
}

async fn retire_attempt(tx: &mut dyn Tx, execution: &Execution, reason: &str) -> Result<()> {
    let key = Key::attempt(execution.id, execution.attempt_index);
    if let Some(mut attempt) = tx.get::<Attempt>(key).await? {
        let end = crate::records::AttemptEnd {
            lifecycle: AttemptLifecycle::InterruptedReclaimed,
            reason: Some(reason.to_owned()),
            category: None,
            taken: true,
        };
        attempt.end(end, tx.now());
        tx.put(attempt);
    }
    close_stream(tx, execution, StreamCloseReason::Reclaimed).await
}

/// What follows from ownership that ended in order: history, and the debt to quotas.
pub(crate) fn released(tx: &mut dyn Tx, subject: &Subject, release: Option<Release>, reason: ReleaseReason) {
    let Some(release) = release else { return };
    let execution = &subject.execution;
    subject.emit_lease(tx, LeaseChange::Released { lease_id: release.lease.id, lease_epoch: release.epoch, reason });
    if !execution.quota_policy_ids.is_empty() {
        tx.put(Settlement {
            execution: execution.id,
            epoch: release.epoch,
            quotas: execution.quota_policy_ids.clone(),
            due_at: tx.now(),
        });
    }
}

/// Parks the current attempt: the same one goes on later.
pub(crate) async fn park_attempt(tx: &mut dyn Tx, execution: &Execution) -> Result<()> {
    let key = Key::attempt(execution.id, execution.attempt_index);
    if let Some(mut attempt) = tx.get::<Attempt>(key).await? {
        attempt.park(tx.now());
        tx.put(attempt);
    }
    Ok(())
}
