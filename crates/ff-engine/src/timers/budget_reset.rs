//! A budget starts a new period.

use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::ops::budgets::reset;
use crate::records::Budget;
use crate::store::Store;

/// Resets a budget whose period is over, unless somebody did.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, budget: Budget, _now: TimestampMs) -> Result<bool> {
    reset::when_due(engine, budget.id).await
}
