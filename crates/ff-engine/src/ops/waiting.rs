//! Waiting for something that a commit brings.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::store::Store;

/// Waits for news, at most until `moment`; `false` once the deadline has passed, or the engine closes.
pub(super) async fn wait<S: Store>(
    engine: &Engine<S>,
    news: impl Future<Output = ()> + Send,
    moment: TimestampMs,
    deadline: TimestampMs,
) -> Result<bool> {
    if deadline.is_due(engine.store.now().await?) {
        return Ok(false);
    }
    let mut closing = engine.closing.subscribe();
    tokio::select! {
        () = news => Ok(true),
        () = engine.store.sleep_until(moment.min(deadline)) => Ok(true),
        _ = closing.wait_for(|closing| *closing) => Ok(false),
    }
}
