//! One execution as readers see it.

use ff_core::backend::inspection::{AttemptSummary, ExecutionContext, ExecutionInfo, ExecutionSnapshot, LeaseSummary};
use ff_core::ids::ExecutionId;
use ff_core::state::{AttemptState, BlockingReason};
use ff_core::{Blob, Result};

use super::missing;
use crate::key::Key;
use crate::records::{Definition, Execution, ExecutionTags, Payload, Progress, Record};
use crate::store::Store;

/// The records of one execution that a read asked for, whichever exist.
#[derive(Default)]
struct Found {
    execution: Option<Execution>,
    tags: Option<ExecutionTags>,
    progress: Option<Progress>,
    definition: Option<Definition>,
    payload: Option<Payload>,
}

async fn find<S: Store>(store: &S, keys: &[Key]) -> Result<Found> {
    let mut found = Found::default();
    for record in store.read(keys).await?.into_iter().flatten() {
        match record {
            Record::Execution(it) => found.execution = Some((*it).clone()),
            Record::ExecutionTags(it) => found.tags = Some((*it).clone()),
            Record::Progress(it) => found.progress = Some((*it).clone()),
            Record::Definition(it) => found.definition = Some((*it).clone()),
            Record::Payload(it) => found.payload = Some((*it).clone()),
            _ => {}
        }
    }
    Ok(found)
}

/// The view for people.
pub(super) async fn describe<S: Store>(store: &S, id: ExecutionId) -> Result<Option<ExecutionSnapshot>> {
    let found = find(store, &[Key::execution(id), Key::execution_tags(id), Key::progress(id)]).await?;
    let Some(execution) = found.execution else { return Ok(None) };
    let touched_beside = [found.tags.as_ref().map(|it| it.updated_at), found.progress.map(|it| it.updated_at)];
    let last_mutation_at = touched_beside.into_iter().flatten().fold(execution.last_mutation_at, std::cmp::Ord::max);
    Ok(Some(ExecutionSnapshot {
        execution_id: id,
        flow_id: execution.flow_id,
        lane_id: execution.lane.clone(),
        namespace: execution.namespace.clone(),
        public_state: execution.public_state(),
        blocking_reason: Some(execution.state().blocking_reason).filter(|reason| *reason != BlockingReason::None),
        current_attempt: current_attempt(&execution),
        current_lease: current_lease(&execution),
        current_waitpoint: execution.current_waitpoint,
        created_at: execution.created_at,
        last_mutation_at,
        total_attempt_count: execution.attempt_count,
        tags: found.tags.map(|record| record.tags).unwrap_or_default(),
        blocking_detail: execution.blocking_detail,
    }))
}

/// The attempt that runs or ran last, unless the next claim makes a new one.
fn current_attempt(execution: &Execution) -> Option<AttemptSummary> {
    let is_due = matches!(
        execution.state().attempt_state,
        AttemptState::None
            | AttemptState::PendingFirstAttempt
            | AttemptState::PendingRetryAttempt
            | AttemptState::PendingReplayAttempt
    );
    let attempt_id = execution.attempt_id.filter(|_| !is_due)?;
    Some(AttemptSummary { attempt_id, attempt_index: execution.attempt_index })
}

/// The lease as it is held, or as it ran out; a revoked one is gone.
fn current_lease(execution: &Execution) -> Option<LeaseSummary> {
    let lease = execution.lease.as_ref().filter(|lease| lease.revoked.is_none())?;
    Some(LeaseSummary {
        lease_id: lease.id,
        lease_epoch: execution.epoch,
        worker_instance_id: lease.worker_instance_id.clone(),
        expires_at: lease.expires_at,
        attempt_index: execution.attempt_index,
        last_heartbeat_at: lease.renewed_at,
    })
}

/// What a handler needs to start.
pub(super) async fn context<S: Store>(store: &S, id: ExecutionId) -> Result<ExecutionContext> {
    let keys = [Key::execution(id), Key::execution_tags(id), Key::definition(id), Key::payload(id)];
    let found = find(store, &keys).await?;
    let execution = found.execution.ok_or_else(|| missing(id))?;
    let (input_payload, inputs) =
        found.payload.map_or_else(|| (Blob::empty(), Default::default()), |it| (it.payload, it.inputs));
    let (payload_encoding, trace_context) =
        found.definition.map_or((None, None), |it| (it.payload_encoding, it.trace_context));
    Ok(ExecutionContext {
        input_payload,
        payload_encoding,
        execution_kind: execution.class.kind.to_string(),
        tags: found.tags.map(|record| record.tags).unwrap_or_default(),
        inputs,
        namespace: execution.namespace,
        lane_id: execution.lane,
        flow_id: execution.flow_id,
        attempt_index: execution.attempt_index,
        replay_count: execution.replay_count,
        retry_count: execution.retry_count,
        suspension_count: execution.suspension_count,
        trace_context,
    })
}

/// The full view with every state dimension.
pub(super) fn info(execution: Execution) -> ExecutionInfo {
    ExecutionInfo {
        execution_id: execution.id,
        priority: execution.priority,
        state_vector: execution.state(),
        public_state: execution.public_state(),
        created_at: execution.created_at,
        started_at: execution.started_at,
        completed_at: execution.completed_at,
        current_attempt_index: execution.attempt_index,
        flow_id: execution.flow_id,
        namespace: execution.namespace,
        lane_id: execution.lane,
        execution_kind: execution.class.kind.to_string(),
        blocking_detail: execution.blocking_detail.unwrap_or_default(),
    }
}
