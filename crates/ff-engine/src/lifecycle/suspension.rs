//! Closing suspensions and waitpoints, and going on after them.

use ff_core::Result;
use ff_core::backend::suspension::ResumeTrigger;
use ff_core::fault::{Fault, is_on};
use ff_core::state::CloseReason;

use super::Subject;
use super::dependencies::holds;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Execution, Record, Suspension, Waitpoint};
use crate::store::Tx;

/// Waitpoints one suspension may bind, so that closing it stays one commit.
pub(crate) const BOUND_WAITPOINTS_MAX: usize = 256;

/// Pending waitpoints one execution may have, so that ending it stays one commit.
pub(crate) const PENDING_WAITPOINTS_MAX: usize = 1000;

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
    let home = execution.id.partition();
    let keys: Vec<Key> = suspension.waitpoints.iter().map(|id| Key::waitpoint(home, *id)).collect();
    for record in tx.load(&keys).await?.into_iter().flatten().filter(|_| !is_on(Fault::WaitpointsLeftOpen)) {
        close_waitpoint(tx, record, reason);
    }
    suspension.close(reason, now);
    tx.put(suspension.clone());
    Ok(Some(suspension))
}

fn close_waitpoint(tx: &mut dyn Tx, record: Record, reason: CloseReason) {
    if let Ok(mut waitpoint) = Waitpoint::try_from(record) {
        waitpoint.close(reason, tx.now());
        tx.put(waitpoint);
    }
}

/// Closes every waitpoint that is still open, pending ones included.
pub(crate) async fn close_all_waitpoints(tx: &mut dyn Tx, execution: &Execution, reason: CloseReason) -> Result<()> {
    if !execution.had_waitpoints() {
        return Ok(());
    }
    let most = BOUND_WAITPOINTS_MAX + PENDING_WAITPOINTS_MAX;
    loop {
        let open = tx.range_of::<Waitpoint>(Index::OpenWaitpointsOf(execution.id), Bounds::first(most)).await?;
        let (found, now) = (open.len(), tx.now());
        for mut waitpoint in open {
            waitpoint.close(reason, now);
            tx.put(waitpoint);
        }
        if found < most {
            return Ok(());
        }
    }
}

/// How a suspended execution goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resume {
    pub(crate) reason: CloseReason,
    pub(crate) trigger: ResumeTrigger,
    pub(crate) delay_ms: u64,
}

/// Closes the suspension with all its waitpoints and makes the execution claimable, at once or after the delay.
pub(crate) async fn resume(tx: &mut dyn Tx, subject: &mut Subject, resume: Resume) -> Result<()> {
    if let Some(mut suspension) = close_suspension(tx, &subject.execution, resume.reason).await? {
        suspension.trigger = Some(resume.trigger);
        tx.put(suspension);
    }
    resume_execution_state(tx, subject, resume.delay_ms).await?;
    subject.save(tx);
    Ok(())
}

/// Leaves the suspended state; dependencies that were put in force meanwhile hold it from now on.
async fn resume_execution_state(tx: &mut dyn Tx, subject: &mut Subject, delay_ms: u64) -> Result<()> {
    let now = tx.now();
    let delay_until = (delay_ms > 0).then(|| now.plus(delay_ms));
    subject.execution.resume(delay_until, now);
    if holds(tx, &subject.execution).await? {
        subject.execution.wait_for_dependencies(now);
    }
    Ok(())
}
