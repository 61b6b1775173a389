//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Claims;
use ff_core::backend::claims::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Claims for Engine<S> {
    async fn claim(&self, lane: &LaneId, capabilities: &CapabilitySet, policy: ClaimPolicy) -> Result<Option<Handle>> {
        Err(ff_core::EngineError::Unavailable { op: "claim" })
    }

    async fn claim_from_resume_grant(&self, token: ResumeToken) -> Result<Option<Handle>> {
        Err(ff_core::EngineError::Unavailable { op: "claim_from_resume_grant" })
    }
}
