//! Nothing has two owners at once.

use std::collections::BTreeMap;

use ff_core::backend::subscriptions::LeaseChange;
use ff_core::ids::ExecutionId;
use ff_engine::event::{Event, EventBody};

/// Whoever claims gets an epoch that nobody else got: claims are executions with their epoch and the name of who owns them.
///
/// # Errors
/// An ownership that was given twice; that nothing was claimed at all.
pub fn nothing_is_claimed_twice<'c>(
    claims: impl IntoIterator<Item = &'c (ExecutionId, u64, String)>,
) -> Result<(), String> {
    let mut owners = BTreeMap::new();
    for (execution, epoch, worker) in claims {
        if let Some(other) = owners.insert((*execution, *epoch), worker) {
            return Err(format!("{execution} was given to {other} and to {worker} with epoch {epoch}"));
        }
    }
    if owners.is_empty() { Err("nothing was claimed".to_owned()) } else { Ok(()) }
}

/// An ownership begins only after the one before it has ended.
///
/// # Errors
/// An execution that was owned twice at once.
pub fn nothing_is_owned_twice(events: &[Event]) -> Result<(), String> {
    let mut owned: BTreeMap<ExecutionId, u64> = BTreeMap::new();
    for event in events {
        let (Some(id), EventBody::Lease(change)) = (event.execution_id, &event.body) else { continue };
        let begins = match change {
            LeaseChange::Acquired { lease_epoch, .. } => Some(lease_epoch.0),
            LeaseChange::Reclaimed { new_lease_epoch, .. } => Some(new_lease_epoch.0),
            LeaseChange::Expired { .. } | LeaseChange::Revoked { .. } | LeaseChange::Released { .. } => {
                owned.remove(&id);
                None
            }
            LeaseChange::Renewed { .. } | LeaseChange::ReplayInitiated { .. } => None,
        };
        if let Some(epoch) = begins
            && let Some(other) = owned.insert(id, epoch)
        {
            return Err(format!("{id} was owned with epoch {other} and with epoch {epoch}"));
        }
    }
    Ok(())
}
