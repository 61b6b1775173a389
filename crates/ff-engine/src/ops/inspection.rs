//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Inspection;
use ff_core::backend::inspection::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Inspection for Engine<S> {
    async fn describe_execution(&self, execution_id: ExecutionId) -> Result<Option<ExecutionSnapshot>> {
        Err(ff_core::EngineError::Unavailable { op: "describe_execution" })
    }

    async fn read_execution_context(&self, execution_id: ExecutionId) -> Result<ExecutionContext> {
        Err(ff_core::EngineError::Unavailable { op: "read_execution_context" })
    }
}
