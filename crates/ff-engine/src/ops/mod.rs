//! What each operation does; one file per facet of the contract.

pub(crate) mod attempts;
pub(crate) mod budgets;
mod claims;
mod connection;
pub(crate) mod dependencies;
pub(crate) mod flows;
pub(crate) mod ingress;
mod inspection;
pub(crate) mod leases;
mod maintenance;
mod quotas;
mod signals;
mod streams;
mod subscriptions;
mod suspension;
mod waiting;
pub(crate) mod workers;

use ff_core::{EngineError, Result};

/// Refuses a duration of zero, and one that leads beyond the end of time.
fn check_duration(what: &str, ms: u64) -> Result<()> {
    if ms == 0 {
        return Err(EngineError::invalid(format_args!("{what} is zero")));
    }
    check_reach(what, ms)
}

/// Refuses a duration that leads beyond the end of time: stored, it would be another one.
fn check_reach(what: &str, ms: u64) -> Result<()> {
    match i64::try_from(ms) {
        Ok(ms) if ms <= i64::MAX / 2 => Ok(()),
        _ => Err(EngineError::invalid(format_args!("{what} is too long"))),
    }
}
