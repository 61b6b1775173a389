//! Waiting for something that a commit brings.

use std::fmt;
use std::sync::Arc;

use ff_core::{EngineError, Result, TimestampMs};

use crate::engine::Engine;
use crate::store::Store;

/// Why nobody waits any more.
#[derive(Debug)]
struct Closing;

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the engine is closing")
    }
}

impl std::error::Error for Closing {}

/// What whoever would have to wait is told from the time on that the engine closes. An empty answer would be asked for again at once.
pub(super) fn closing<S: Store>() -> EngineError {
    EngineError::Transport { backend: S::TAG.as_str(), retryable: false, source: Arc::new(Closing) }
}

/// Waits for news, at most until `moment`; `false` once the deadline has passed.
pub(super) async fn wait<S: Store>(
    engine: &Engine<S>,
    news: impl Future<Output = ()> + Send,
    moment: TimestampMs,
    deadline: TimestampMs,
) -> Result<bool> {
    if deadline.is_due(engine.store.now().await?) {
        return Ok(false);
    }
    let mut closes = engine.closing.subscribe();
    tokio::select! {
        biased;
        _ = closes.wait_for(|closes| *closes) => Err(closing::<S>()),
        () = news => Ok(true),
        () = engine.store.sleep_until(moment.min(deadline)) => Ok(true),
    }
}
