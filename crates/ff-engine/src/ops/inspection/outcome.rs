//! What an execution came to, as soon as it has come to it.

use ff_core::backend::inspection::ExecutionOutcome;
use ff_core::error::Entity;
use ff_core::ids::ExecutionId;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Topic};
use crate::key::Key;
use crate::ops::waiting::wait;
use crate::records::Record;
use crate::store::Store;

/// How long to wait for an execution that is on its way in before looking again.
const ON_ITS_WAY_MS: u64 = 50;

/// Looks until the execution is over, the time is up, or the engine closes.
pub(super) async fn wait_for<S: Store>(
    engine: &Engine<S>,
    id: ExecutionId,
    max_wait_ms: u64,
) -> Result<Option<ExecutionOutcome>> {
    if max_wait_ms == 0 {
        return Ok(look(&*engine.store, id).await?.known());
    }
    let deadline = engine.store.now().await?.plus(max_wait_ms);
    loop {
        let ended = engine.store.listen(&Topic::Execution(id));
        let moment = match look(&*engine.store, id).await? {
            Sight::Over(outcome) => return Ok(Some(*outcome)),
            Sight::Alive => deadline,
            Sight::OnItsWay => engine.store.now().await?.plus(ON_ITS_WAY_MS),
        };
        if !wait(engine, ended, moment, deadline).await? {
            return Ok(None);
        }
    }
}

/// What there is to see of an execution.
enum Sight {
    /// It is over.
    Over(Box<ExecutionOutcome>),
    /// It is not over.
    Alive,
    /// A submission that asks for it is committed and not yet taken in.
    OnItsWay,
}

impl Sight {
    fn known(self) -> Option<ExecutionOutcome> {
        match self {
            Self::Over(outcome) => Some(*outcome),
            Self::Alive | Self::OnItsWay => None,
        }
    }
}

/// Looks for the execution, and if there is none, for a submission that asks for it.
async fn look<S: Store>(store: &S, id: ExecutionId) -> Result<Sight> {
    if let Some(sight) = look_once(store, id).await? {
        return Ok(sight);
    }
    if !store.keys(&Index::IntakesOf(id), &Bounds::first(1)).await?.is_empty() {
        return Ok(Sight::OnItsWay);
    }
    // It may have been taken in between the two looks.
    look_once(store, id).await?.ok_or(EngineError::not_found(Entity::Execution))
}

/// The outcome, if there is one yet; none where there is no such execution. State and result are read at one moment, so a replay in between mixes nothing.
async fn look_once<S: Store>(store: &S, id: ExecutionId) -> Result<Option<Sight>> {
    let mut found = store.read(&[Key::execution(id), Key::outcome(id)]).await?.into_iter();
    let (Some(Record::Execution(execution)), result) = (found.next().flatten(), found.next().flatten()) else {
        return Ok(None);
    };
    let Some(completed_at) = execution.completed_at.filter(|_| execution.is_terminal()) else {
        return Ok(Some(Sight::Alive));
    };
    let result = match result {
        Some(Record::Outcome(outcome)) if execution.has_result => Some(outcome.result.clone()),
        _ => None,
    };
    let failure = execution.failure.as_ref();
    Ok(Some(Sight::Over(Box::new(ExecutionOutcome {
        public_state: execution.public_state(),
        result,
        failure_reason: failure.map(|failure| failure.reason.clone()),
        failure_category: failure.map(|failure| failure.category.clone()),
        cancellation_reason: execution.cancellation.as_ref().map(|cancellation| cancellation.reason.clone()),
        completed_at,
    }))))
}
