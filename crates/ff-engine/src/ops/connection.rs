//! What a backend is, what it can do, and whether it is there.

use std::any::Any;
use std::time::Duration;

use async_trait::async_trait;
use ff_core::backend::Connection;
use ff_core::backend::connection::{BackendIdentity, Capabilities, PrepareOutcome, Supports, Version};
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::store::Store;

#[async_trait]
impl<S: Store> Connection for Engine<S> {
    fn backend_label(&self) -> &'static str {
        S::TAG.as_str()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn capabilities(&self) -> Capabilities {
        let identity = BackendIdentity { family: S::TAG.as_str().to_owned(), version: release() };
        Capabilities { identity, supports: Supports::ALL }
    }

    /// Opening an engine readies its store; there is nothing left to do.
    async fn prepare(&self) -> Result<PrepareOutcome> {
        self.store.now().await?;
        Ok(PrepareOutcome::NoOp)
    }

    async fn ping(&self) -> Result<()> {
        self.store.now().await.map(drop)
    }

    async fn shutdown_prepare(&self, grace: Duration) -> Result<()> {
        self.closing.send_replace(true);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let deadline = self.store.now().await?.plus(grace_ms);
        let places =
            self.settings.stream_ops_max.min(u32::try_from(tokio::sync::Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        let finished = tokio::select! {
            biased;
            // A closed pool has nobody in it.
            _ = self.stream_ops.acquire_many(places) => Ok(()),
            () = self.store.sleep_until(deadline) => {
                Err(EngineError::Timeout { op: "shutdown_prepare", elapsed: grace })
            }
        };
        // Whoever is out of time still tells: others would wait in vain.
        let told = self.store.tell_others().await;
        finished.and(told)
    }

    async fn server_time_ms(&self) -> Result<u64> {
        Ok(u64::try_from(self.store.now().await?.0).unwrap_or(0))
    }
}

/// The release of this crate.
fn release() -> Version {
    let part = |text: &str| text.parse().unwrap_or(0);
    Version {
        major: part(env!("CARGO_PKG_VERSION_MAJOR")),
        minor: part(env!("CARGO_PKG_VERSION_MINOR")),
        patch: part(env!("CARGO_PKG_VERSION_PATCH")),
    }
}
