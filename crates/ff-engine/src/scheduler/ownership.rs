//! Taking ownership: the one way behind every kind of claim.

use ff_core::error::BugKind;
use ff_core::fault::{Fault, is_on};
use ff_core::handle::{Handle, HandleKind, HandlePayload};
use ff_core::ids::AttemptId;
use ff_core::policy::DEFAULT_MAX_RECLAIM_COUNT;
use ff_core::rules::fence::CancelSource;
use ff_core::state::{AttemptState, AttemptType};
use ff_core::{EngineError, Result};

use crate::draft::Draft;
use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::graph::owes_cancellation;
use crate::lifecycle::{Ending, Handover, Subject, finish, hand_over};
use crate::ops::flows::cancel::continuation_key;
use crate::records::{Continuation, Definition, Execution, Flow, FlowCancellation, GrantKind, Taker};
use crate::store::{Store, Tx};

/// An execution that has just got an owner.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) execution: Draft<Execution>,
    pub(crate) kind: HandleKind,
    pub(crate) attempt_type: AttemptType,
}

/// What taking this execution now means: a new attempt, the interrupted one, or one in place of a lost one.
pub(crate) fn grant_kind(execution: &Execution) -> GrantKind {
    if execution.is_lost() {
        GrantKind::Reclaim
    } else if execution.state().attempt_state == AttemptState::AttemptInterrupted {
        GrantKind::Resume
    } else {
        GrantKind::Claim
    }
}

/// Gives the execution to a worker, by the way its state calls for. `attempt_id` names a new attempt, if one is made.
pub(crate) async fn take(
    tx: &mut dyn Tx,
    mut subject: Subject,
    taker: Taker,
    attempt_id: AttemptId,
    attempt_timeout_ms: Option<u64>,
) -> Result<Owned> {
    let (handover, kind) = match grant_kind(&subject.execution) {
        GrantKind::Claim => (Handover::Fresh { attempt_id }, HandleKind::Fresh),
        GrantKind::Resume => (Handover::Resumed, HandleKind::Resumed),
        GrantKind::Reclaim => (Handover::Reclaimed { attempt_id }, HandleKind::Reclaimed),
    };
    let attempt_type = hand_over(tx, &mut subject, taker, handover, attempt_timeout_ms).await?;
    Ok(Owned { execution: subject.execution, kind, attempt_type })
}

/// Whether the execution belongs to a flow whose cancellation is to reach it.
pub(crate) async fn is_being_cancelled(tx: &mut dyn Tx, execution: &Execution) -> Result<bool> {
    Ok(cancellation_owed(tx, execution).await?.is_some())
}

async fn cancellation_owed(tx: &mut dyn Tx, execution: &Execution) -> Result<Option<FlowCancellation>> {
    let Some(flow) = execution.flow_id else { return Ok(None) };
    let flow = tx.get::<Flow>(Key::flow(execution.id.partition(), flow)).await?;
    let owed = |cancellation: &FlowCancellation| owes_cancellation(cancellation.policy, execution);
    Ok(flow.and_then(|flow| flow.cancellation).filter(owed))
}

/// Cancels a member that its cancelled flow missed: it was active while the others were cancelled, and handed back since. Leaves it
/// alone while the flow's own work goes on. Says whether it was owed a cancellation.
pub(crate) async fn cancel_if_owed(tx: &mut dyn Tx, subject: &Subject) -> Result<bool> {
    let execution = &subject.execution;
    let Some(cancellation) = cancellation_owed(tx, execution).await? else { return Ok(false) };
    if let Some(flow) = execution.flow_id
        && tx.get::<Continuation>(continuation_key(execution.id.partition(), flow)).await?.is_none()
    {
        let ending = Ending::cancelled(cancellation.reason, CancelSource::FlowCascade.as_str());
        Box::pin(finish(tx, subject.clone(), ending)).await?;
    }
    Ok(true)
}

/// How many lost leases the execution survives; `asked` counts where the policy does not say.
pub(crate) async fn reclaim_cap(tx: &mut dyn Tx, execution: &Execution, asked: Option<u32>) -> Result<u32> {
    if is_on(Fault::ReclaimCapIgnored) {
        return Ok(u32::MAX);
    }
    let policy = tx.get::<Definition>(Key::definition(execution.id)).await?.and_then(|definition| definition.policy);
    Ok(policy.map_or_else(|| asked.unwrap_or(DEFAULT_MAX_RECLAIM_COUNT), |policy| policy.reclaim_cap(asked)))
}

/// Ends an execution that lost its lease once too often.
pub(crate) async fn end_over_cap(tx: &mut dyn Tx, subject: Subject) -> Result<Draft<Execution>> {
    let ending = Ending::failed("max_reclaims_exceeded", "max_reclaims_exceeded").taken(true);
    Box::pin(finish(tx, subject, ending)).await
}

impl<S: Store> Engine<S> {
    /// The proof of an ownership that was just taken.
    pub(crate) fn handle_of(&self, execution: &Execution, kind: HandleKind) -> Result<Handle> {
        let (Some(lease), Some(attempt_id)) = (&execution.lease, execution.attempt_id) else {
            return Err(EngineError::Bug(BugKind::DanglingReference));
        };
        Ok(self.seal_handle(&HandlePayload {
            execution_id: execution.id,
            attempt_index: execution.attempt_index,
            attempt_id,
            lease_id: lease.id,
            lease_epoch: execution.epoch,
            lease_ttl_ms: lease.ttl_ms,
            lane_id: execution.lane.clone(),
            namespace: execution.namespace.clone(),
            worker_id: lease.worker_id.clone(),
            worker_instance_id: lease.worker_instance_id.clone(),
            kind,
        }))
    }
}
