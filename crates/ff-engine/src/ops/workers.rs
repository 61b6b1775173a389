//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Workers;
use ff_core::backend::workers::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Workers for Engine<S> {}
