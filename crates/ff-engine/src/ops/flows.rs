//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Flows;
use ff_core::backend::flows::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Flows for Engine<S> {
    async fn cancel_flow(
        &self,
        flow_id: FlowId,
        policy: CancelFlowPolicy,
        wait: CancelFlowWait,
    ) -> Result<CancelFlowResult> {
        Err(ff_core::EngineError::Unavailable { op: "cancel_flow" })
    }

    async fn describe_flow(&self, flow_id: FlowId) -> Result<Option<FlowSnapshot>> {
        Err(ff_core::EngineError::Unavailable { op: "describe_flow" })
    }
}
