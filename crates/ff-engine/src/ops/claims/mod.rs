//! Work is found, reserved and taken, or held back.

mod direct;

use std::collections::BTreeSet;

use ff_core::backend::Claims;
use ff_core::backend::claims::{ClaimPolicy, ResumeToken};
use ff_core::capability::{CapabilitySet, CapabilitySide, check_tokens};
use ff_core::handle::Handle;
use ff_core::ids::LaneId;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Claims for Engine<S> {
    async fn claim(&self, lane: &LaneId, capabilities: &CapabilitySet, policy: ClaimPolicy) -> Result<Option<Handle>> {
        Ok(direct::claim(self, lane, capabilities, policy, 1).await?.pop())
    }

    async fn claim_many(
        &self,
        lane: &LaneId,
        capabilities: &CapabilitySet,
        policy: ClaimPolicy,
        count: u32,
    ) -> Result<Vec<Handle>> {
        direct::claim(self, lane, capabilities, policy, usize::try_from(count).unwrap_or(usize::MAX)).await
    }

    async fn claim_from_resume_grant(&self, _token: ResumeToken) -> Result<Option<Handle>> {
        Ok(None)
    }
}

/// Checks what a worker offers when it asks for any work: a malformed set is a fault of the call as a whole.
fn check_offer(tokens: &BTreeSet<String>) -> Result<()> {
    check_tokens(CapabilitySide::Worker, tokens).map_err(|error| match error {
        EngineError::Validation { detail, .. } => EngineError::invalid(detail),
        other => other,
    })
}
