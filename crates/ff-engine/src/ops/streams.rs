//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Streams;
use ff_core::backend::streams::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Streams for Engine<S> {
    async fn append_frame(&self, handle: &Handle, frame: Frame) -> Result<AppendFrameOutcome> {
        Err(ff_core::EngineError::Unavailable { op: "append_frame" })
    }
}
