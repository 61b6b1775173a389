//! Keeping the lease of one task while its handler runs.

use std::time::Duration;

use ff_core::backend::leases::AwaitLostLeasesArgs;
use ff_core::error::EngineError;
use ff_core::handle::Handle;
use tokio::time::Instant;
use tracing::warn;

use super::Shared;
use super::board::interruption;
use crate::error::is_loss;
use crate::fate::{Fate, Interruption};

/// The longest pause before a renewal that failed is tried again.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Renews at a third of the TTL until the lease is lost, and tells the handler then.
pub(super) async fn keep(shared: &Shared, handle: &Handle, fate: &Fate) {
    let ttl = shared.lease_ttl;
    let mut valid_until = Instant::now() + ttl;
    let mut next = Instant::now() + ttl / 3;
    loop {
        tokio::time::sleep_until(next.min(valid_until)).await;
        let sent = Instant::now();
        if sent >= valid_until {
            metrics::counter!("ff_worker_leases_lost_total").increment(1);
            let detail = "the lease could not be renewed in time".to_owned();
            return fate.interrupt(Interruption::LeaseLost { detail });
        }
        match tokio::time::timeout_at(valid_until, shared.backend.renew(handle)).await {
            Ok(Ok(_)) => {
                valid_until = sent + ttl;
                next = sent + ttl / 3;
            }
            Ok(Err(error)) if is_loss(&error) => {
                if !fate.is_parked() {
                    metrics::counter!("ff_worker_leases_lost_total").increment(1);
                    fate.interrupt(explain(shared, handle, &error).await);
                }
                return;
            }
            Ok(Err(error)) => {
                warn!(%error, "cannot renew a lease; trying again");
                next = Instant::now() + (ttl / 10).min(RETRY_MAX);
            }
            Err(_) => next = valid_until,
        }
    }
}

/// Why the lease is gone, in the engine's words if it can still tell.
async fn explain(shared: &Shared, handle: &Handle, error: &EngineError) -> Interruption {
    let args = AwaitLostLeasesArgs {
        worker_instance_id: shared.instance_id.clone(),
        handles: vec![handle.clone()],
        max_wait_ms: 0,
    };
    let told = shared.backend.await_lost_leases(args).await.ok().and_then(|lost| lost.into_iter().next());
    told.map_or_else(|| Interruption::LeaseLost { detail: error.to_string() }, |lost| interruption(&lost.loss))
}
