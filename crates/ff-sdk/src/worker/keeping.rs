//! Keeping the lease of one task while its handler runs.

use std::time::Duration;

use ff_core::handle::Handle;
use tokio::time::Instant;
use tracing::warn;

use super::Shared;
use crate::error::is_loss;
use crate::fate::{Fate, Interruption, explain_loss};

/// The longest pause before a renewal that failed is tried again.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Renews at a third of the TTL until the lease is lost, and tells the handler then. The lease was taken no later than `taken_at`.
pub(super) async fn keep(shared: &Shared, handle: &Handle, fate: &Fate, taken_at: Instant) {
    let ttl = shared.lease_ttl;
    let mut valid_until = taken_at + ttl;
    let mut next = taken_at + ttl / 3;
    loop {
        tokio::time::sleep_until(next.min(valid_until)).await;
        if fate.is_parked() {
            return;
        }
        let sent = Instant::now();
        if sent >= valid_until {
            let detail = "the lease could not be renewed in time".to_owned();
            return lose(fate, Interruption::LeaseLost { detail });
        }
        match tokio::time::timeout_at(valid_until, shared.backend.renew(handle)).await {
            Ok(Ok(_)) => {
                valid_until = sent + ttl;
                next = sent + ttl / 3;
            }
            Ok(Err(_)) if fate.is_parked() => return,
            Ok(Err(error)) if is_loss(&error) => {
                return lose(fate, explain_loss(&*shared.backend, &shared.instance_id, handle, &error).await);
            }
            Ok(Err(error)) => {
                warn!(%error, "cannot renew a lease; trying again");
                next = Instant::now() + (ttl / 10).min(RETRY_MAX);
            }
            Err(_) => next = valid_until,
        }
    }
}

fn lose(fate: &Fate, why: Interruption) {
    metrics::counter!("ff_worker_leases_lost_total").increment(1);
    fate.interrupt(why);
}
