//! (being written)
#![allow(unused_imports, unused_variables)]

use ff_core::backend::Budgets;
use ff_core::backend::budgets::*;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::*;
use ff_core::rules::retry::FailureClass;
use ff_core::{Blob, Result, TimestampMs};
use std::time::Duration;

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Budgets for Engine<S> {
    async fn report_usage(
        &self,
        handle: &Handle,
        budget_id: BudgetId,
        dimensions: UsageDimensions,
    ) -> Result<ReportUsageResult> {
        Err(ff_core::EngineError::Unavailable { op: "report_usage" })
    }
}
