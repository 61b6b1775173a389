//! Grants: reserving one execution for one worker, and consuming the reservation once.

use std::collections::BTreeSet;

use ff_core::error::ContentionKind;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{ExecutionId, LaneId, WorkerId, WorkerInstanceId};
use ff_core::partition::PartitionKey;
use ff_core::{EngineError, Result};
use uuid::Uuid;

use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::{Execution, Grant, GrantKind};
use crate::store::Tx;

/// Who a grant is for.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) worker_id: WorkerId,
    pub(crate) worker_instance_id: WorkerInstanceId,
    pub(crate) capabilities: BTreeSet<String>,
}

/// The grant that reserves an execution now, if any.
pub(crate) async fn live_grant(tx: &mut dyn Tx, execution: ExecutionId) -> Result<Option<Grant>> {
    let now = tx.now();
    Ok(tx.get::<Grant>(Key::grant(execution)).await?.filter(|grant| grant.is_live(now)))
}

/// Whether a worker can serve the execution; a miss is stamped on it, in this commit, and the inner result refuses.
pub(crate) fn require_capabilities(
    tx: &mut dyn Tx,
    subject: &mut Subject,
    offered: &BTreeSet<String>,
) -> Result<(), EngineError> {
    let answer = subject.execution.class.requirement.require(offered);
    if answer.is_err() {
        subject.execution.last_capability_mismatch_at = Some(tx.now());
        subject.save(tx);
    }
    answer
}

/// Reserves the execution for a worker; the caller has made sure that no live grant stands in the way.
pub(crate) fn put_grant(
    tx: &mut dyn Tx,
    execution: &Execution,
    kind: GrantKind,
    holder: &Holder,
    id: Uuid,
    ttl_ms: u64,
) -> Grant {
    let now = tx.now();
    let grant = Grant {
        execution: execution.id,
        kind,
        id,
        lane: execution.lane.clone(),
        worker_id: holder.worker_id.clone(),
        worker_instance_id: holder.worker_instance_id.clone(),
        capabilities: holder.capabilities.clone(),
        created_at: now,
        expires_at: now.plus(ttl_ms),
    };
    tx.put(grant.clone());
    grant
}

/// A grant as callers see it.
pub(crate) fn shown(grant: &Grant) -> ff_core::backend::claims::Grant {
    ff_core::backend::claims::Grant {
        kind: grant.kind,
        execution_id: grant.execution,
        partition_key: PartitionKey::from(grant.execution.partition()),
        grant_key: grant.grant_key(),
        expires_at_ms: grant.expires_at,
        lane_id: grant.lane.clone(),
    }
}

/// A worker that presents itself to consume a grant.
#[derive(Clone, Debug)]
pub(crate) struct Presenter<'a> {
    pub(crate) kind: GrantKind,
    pub(crate) worker_id: &'a WorkerId,
    pub(crate) worker_instance_id: &'a WorkerInstanceId,
    /// The lane it names, where it names one.
    pub(crate) lane: Option<&'a LaneId>,
    /// The grant it names, where it names one.
    pub(crate) grant_key: Option<&'a str>,
}

/// Consumes the execution's grant, in this commit: `InvalidClaimGrant` when there is none for this worker, `ClaimGrantExpired` when its
/// time is over; an expired one is removed all the same.
pub(crate) async fn consume_grant(
    tx: &mut dyn Tx,
    execution: &Execution,
    presenter: &Presenter<'_>,
) -> Result<Result<Grant, ContentionKind>> {
    let Some(grant) = tx.get::<Grant>(Key::grant(execution.id)).await? else {
        return Ok(Err(ContentionKind::InvalidClaimGrant));
    };
    let is_theirs = grant.kind == presenter.kind
        && (is_on(Fault::GrantOwnerIgnored)
            || (grant.worker_id == *presenter.worker_id && grant.worker_instance_id == *presenter.worker_instance_id))
        && presenter.lane.is_none_or(|lane| *lane == grant.lane)
        && presenter.grant_key.is_none_or(|key| key == grant.grant_key())
        && execution.class.requirement.is_covered_by(&grant.capabilities);
    if !is_theirs {
        return Ok(Err(ContentionKind::InvalidClaimGrant));
    }
    tx.delete(Key::grant(execution.id));
    Ok(if grant.is_live(tx.now()) { Ok(grant) } else { Err(ContentionKind::ClaimGrantExpired) })
}
