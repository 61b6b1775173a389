//! What an execution came to, as soon as it has come to it.

use ff_core::backend::inspection::ExecutionOutcome;
use ff_core::error::Entity;
use ff_core::ids::ExecutionId;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::index::Topic;
use crate::key::Key;
use crate::ops::waiting::wait;
use crate::records::Record;
use crate::store::Store;

/// Looks until the execution is over, the time is up, or the engine closes.
pub(super) async fn wait_for<S: Store>(
    engine: &Engine<S>,
    id: ExecutionId,
    max_wait_ms: u64,
) -> Result<Option<ExecutionOutcome>> {
    if max_wait_ms == 0 {
        return look(&*engine.store, id).await;
    }
    let deadline = engine.store.now().await?.plus(max_wait_ms);
    loop {
        let ended = engine.store.listen(&Topic::Execution(id));
        if let Some(outcome) = look(&*engine.store, id).await? {
            return Ok(Some(outcome));
        }
        if !wait(engine, ended, deadline, deadline).await? {
            return Ok(None);
        }
    }
}

/// The outcome, if there is one yet. State and result are read at one moment, so a replay in between mixes nothing.
async fn look<S: Store>(store: &S, id: ExecutionId) -> Result<Option<ExecutionOutcome>> {
    let mut found = store.read(&[Key::execution(id), Key::outcome(id)]).await?.into_iter();
    let (Some(execution), result) = (found.next().flatten(), found.next().flatten()) else {
        return Err(EngineError::not_found(Entity::Execution));
    };
    let Record::Execution(execution) = execution else { return Err(EngineError::not_found(Entity::Execution)) };
    let Some(completed_at) = execution.completed_at.filter(|_| execution.is_terminal()) else { return Ok(None) };
    let result = match result {
        Some(Record::Outcome(outcome)) if execution.has_result => Some(outcome.result.clone()),
        _ => None,
    };
    let failure = execution.failure.as_ref();
    Ok(Some(ExecutionOutcome {
        public_state: execution.public_state(),
        result,
        failure_reason: failure.map(|failure| failure.reason.clone()),
        failure_category: failure.map(|failure| failure.category.clone()),
        cancellation_reason: execution.cancellation.as_ref().map(|cancellation| cancellation.reason.clone()),
        completed_at,
    }))
}
