//! Siblings of a decided group are cancelled, each in a commit of its own.

use ff_core::rules::fence::CancelSource;
use ff_core::{EngineError, Result, TimestampMs};

use super::settlement::settle_now;
use super::witness::changes;
use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::CancelExecution;
use crate::ops::dependencies::siblings::Cancelled;
use crate::records::EdgeGroup;
use crate::store::Store;

/// When siblings that could not be cancelled are tried again.
const RETRY_MS: u64 = 30_000;

/// Cancels one slice of the siblings and takes them off the list.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: EdgeGroup, now: TimestampMs) -> Result<bool> {
    let Some(cancel) = record.sibling_cancel.filter(|cancel| cancel.pending) else { return Ok(false) };
    let mut cancelled = Vec::new();
    let mut next_at = now;
    for sibling in cancel.siblings.into_iter().take(engine.settings.slice.max(1)) {
        let by = CancelSource::FlowCascade.to_string();
        let op = CancelExecution { execution_id: sibling, reason: cancel.reason.clone(), by };
        match engine.run(op).await {
            Ok(true) => settle_now(engine, sibling).await,
            Ok(false) => {}
            Err(EngineError::Validation { .. }) => {
                next_at = now.plus(RETRY_MS);
                continue;
            }
            Err(error) => return Err(error),
        }
        cancelled.push(sibling);
    }
    let (downstream, generation) = (record.downstream, record.generation);
    let done = Cancelled { downstream, generation, siblings: cancelled, next_at };
    changes(engine, Key::edge_group(downstream, generation), done).await
}
