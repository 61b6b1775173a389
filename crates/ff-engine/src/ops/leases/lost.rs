//! A worker learns that it lost something it holds.

use ff_core::backend::leases::{AwaitLostLeasesArgs, LeaseLoss, LostLease};
use ff_core::handle::HandlePayload;
use ff_core::ids::WorkerInstanceId;
use ff_core::rules::fence::{Loss, loss};
use ff_core::rules::waiting::check_wait_ms;
use ff_core::state::PublicState;
use ff_core::{EngineError, Result, TimestampMs};

use crate::engine::Engine;
use crate::index::Topic;
use crate::key::Key;
use crate::lifecycle::stored_ownership;
use crate::ops::waiting::wait;
use crate::records::{Execution, Record};
use crate::store::Store;

/// Handles one call may name.
const HANDLES_MAX: usize = 1024;

/// Looks until one of the handles is lost, the time is up, or the engine closes.
pub(super) async fn await_lost<S: Store>(engine: &Engine<S>, args: AwaitLostLeasesArgs) -> Result<Vec<LostLease>> {
    check_wait_ms(args.max_wait_ms)?;
    let held = open(engine, &args)?;
    let keys: Vec<Key> = held.iter().map(|owner| Key::execution(owner.execution_id)).collect();
    let deadline = engine.store.now().await?.plus(args.max_wait_ms);
    let topic = Topic::Worker(args.worker_instance_id);
    loop {
        let news = engine.store.listen(&topic);
        let records = engine.store.read(&keys).await?;
        let now = engine.store.now().await?;
        let mut lost = Vec::new();
        let mut next_expiry = deadline;
        for (owner, record) in held.iter().zip(records) {
            match judge(owner, record.as_ref(), now) {
                Ok(expires_at) => next_expiry = next_expiry.min(expires_at),
                Err(loss) => {
                    let (execution_id, attempt_index) = (owner.execution_id, owner.attempt_index);
                    lost.push(LostLease { execution_id, attempt_index, loss });
                }
            }
        }
        if !lost.is_empty() || !wait(engine, news, next_expiry, deadline).await? {
            return Ok(lost);
        }
    }
}

/// What the handles say, if all of them are of this deployment and of this worker.
fn open<S: Store>(engine: &Engine<S>, args: &AwaitLostLeasesArgs) -> Result<Vec<HandlePayload>> {
    if args.handles.len() > HANDLES_MAX {
        let given = args.handles.len();
        return Err(EngineError::invalid(format_args!("{given} handles, at most {HANDLES_MAX}")));
    }
    let own = |owner: &HandlePayload, instance: &WorkerInstanceId| {
        if owner.worker_instance_id == *instance {
            Ok(())
        } else {
            Err(EngineError::invalid(format_args!(
                "the handle of execution {} is of worker {}, not of {instance}",
                owner.execution_id, owner.worker_instance_id
            )))
        }
    };
    args.handles
        .iter()
        .map(|handle| {
            let owner = engine.open_handle(handle)?;
            own(&owner, &args.worker_instance_id)?;
            Ok(owner)
        })
        .collect()
}

/// When the lease runs out, or how it was lost.
fn judge(owner: &HandlePayload, record: Option<&Record>, now: TimestampMs) -> Result<TimestampMs, LeaseLoss> {
    let Some(Record::Execution(execution)) = record else { return Err(LeaseLoss::Missing) };
    let stored = stored_ownership(&execution.ownership());
    match loss(&stored, owner.fence(), owner.attempt_index, now) {
        None => Ok(stored.lease_expires_at.unwrap_or(now)),
        Some(loss) => Err(told(loss, execution)),
    }
}

fn told(loss: Loss, execution: &Execution) -> LeaseLoss {
    let public_state = execution.public_state();
    match (loss, &execution.cancellation) {
        (Loss::Superseded, _) => LeaseLoss::Superseded,
        (Loss::Expired, _) => LeaseLoss::Expired,
        (Loss::Revoked, _) => {
            let revoked = execution.lease.as_ref().and_then(|lease| lease.revoked.as_ref());
            LeaseLoss::Revoked { reason: revoked.map(|(_, reason)| reason.clone()).unwrap_or_default() }
        }
        (Loss::Ended, Some(cancellation)) if public_state == PublicState::Cancelled => {
            LeaseLoss::Cancelled { reason: cancellation.reason.clone() }
        }
        (Loss::Ended, _) => LeaseLoss::Ended { public_state },
    }
}
