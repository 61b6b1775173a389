//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Suspension;
use ff_core::backend::suspension::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Suspension for Engine<S> {
    async fn suspend(&self, handle: &Handle, args: SuspendArgs) -> Result<SuspendOutcome> {
        Err(ff_core::EngineError::Unavailable { op: "suspend" })
    }

    async fn observe_signals(&self, handle: &Handle) -> Result<Vec<ResumeSignal>> {
        Err(ff_core::EngineError::Unavailable { op: "observe_signals" })
    }
}
