//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Attempts;
use ff_core::backend::attempts::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Attempts for Engine<S> {
    async fn progress(&self, handle: &Handle, percent: Option<u8>, message: Option<&str>) -> Result<()> {
        Err(ff_core::EngineError::Unavailable { op: "progress" })
    }

    async fn complete(&self, handle: &Handle, result_payload: Option<Blob>) -> Result<()> {
        Err(ff_core::EngineError::Unavailable { op: "complete" })
    }

    async fn fail(&self, handle: &Handle, reason: FailureReason, class: FailureClass) -> Result<FailOutcome> {
        Err(ff_core::EngineError::Unavailable { op: "fail" })
    }

    async fn cancel(&self, handle: &Handle, reason: &str) -> Result<()> {
        Err(ff_core::EngineError::Unavailable { op: "cancel" })
    }

    async fn delay(&self, handle: &Handle, delay_until: TimestampMs) -> Result<()> {
        Err(ff_core::EngineError::Unavailable { op: "delay" })
    }

    async fn wait_children(&self, handle: &Handle) -> Result<()> {
        Err(ff_core::EngineError::Unavailable { op: "wait_children" })
    }
}
