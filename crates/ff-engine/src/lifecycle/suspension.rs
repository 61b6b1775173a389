//! Closing suspensions and waitpoints.

use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_core::state::CloseReason;

use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Execution, Suspension, Waitpoint};
use crate::store::Tx;

/// Waitpoints one commit may close; more than a suspension can bind.
const WAITPOINTS_MAX: usize = 1000;

/// Closes the open suspension, if any, and every waitpoint bound to it.
pub(crate) async fn close_suspension(
    tx: &mut dyn Tx,
    execution: &Execution,
    reason: CloseReason,
) -> Result<Option<Suspension>> {
    let Some(ordinal) = execution.suspension else { return Ok(None) };
    let Some(mut suspension) = tx.get::<Suspension>(Key::suspension(execution.id, ordinal)).await? else {
        return Ok(None);
    };
    let now = tx.now();
    for id in &suspension.waitpoints {
        if let Some(mut waitpoint) = tx.get::<Waitpoint>(Key::waitpoint(execution.id.partition(), *id)).await? {
            waitpoint.close(reason, now);
            tx.put(waitpoint);
        }
    }
    suspension.close(reason, now);
    tx.put(suspension.clone());
    Ok(Some(suspension))
}

/// Closes every waitpoint that is still open, pending ones included.
pub(crate) async fn close_all_waitpoints(tx: &mut dyn Tx, execution: ExecutionId, reason: CloseReason) -> Result<()> {
    let open = tx.range_of::<Waitpoint>(Index::OpenWaitpointsOf(execution), Bounds::first(WAITPOINTS_MAX)).await?;
    let now = tx.now();
    for mut waitpoint in open {
        waitpoint.close(reason, now);
        tx.put(waitpoint);
    }
    Ok(())
}
