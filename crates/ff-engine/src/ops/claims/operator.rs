//! An operator takes one specific execution, past capabilities, budgets and quotas.

use ff_core::backend::claims::{ClaimGrantOutcome, IssueGrantAndClaimArgs};
use ff_core::error::{BugKind, ContentionKind, StateKind};
use ff_core::ids::{AttemptId, LeaseId, WorkerId, WorkerInstanceId};
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::ops::check_duration;
use crate::records::Taker;
use crate::scheduler::grants::live_grant;
use crate::scheduler::ownership::{Owned, is_being_cancelled, take};
use crate::store::{Op, Store, Tx};

/// The name under which operators hold executions.
const OPERATOR: &str = "operator";

/// Takes ownership at once; no grant outlives the call.
pub(super) async fn issue_grant_and_claim<S: Store>(
    engine: &Engine<S>,
    args: IssueGrantAndClaimArgs,
) -> Result<ClaimGrantOutcome> {
    check_duration("lease_duration_ms", args.lease_duration_ms)?;
    engine.check_partition(args.execution_id)?;
    let taker = Taker {
        lease_id: LeaseId::from_uuid(engine.mint().await?),
        worker_id: WorkerId::new(OPERATOR)?,
        worker_instance_id: WorkerInstanceId::new(OPERATOR)?,
        ttl_ms: args.lease_duration_ms,
    };
    let attempt_id = AttemptId::from_uuid(engine.mint().await?);
    let owned = engine.run(TakeAsOperator { args, taker, attempt_id }).await?;
    let handle = engine.handle_of(&owned.execution, owned.kind)?;
    let (Some(lease), Some(attempt_id)) = (&owned.execution.lease, owned.execution.attempt_id) else {
        return Err(EngineError::Bug(BugKind::DanglingReference));
    };
    Ok(ClaimGrantOutcome {
        lease_id: lease.id,
        lease_epoch: owned.execution.epoch,
        attempt_index: owned.execution.attempt_index,
        attempt_id,
        handle,
    })
}

struct TakeAsOperator {
    args: IssueGrantAndClaimArgs,
    taker: Taker,
    attempt_id: AttemptId,
}

#[async_trait::async_trait]
impl Op for TakeAsOperator {
    type Out = Owned;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let id = self.args.execution_id;
        [Key::grant(id), Key::definition(id)].into_iter().chain(Subject::keys(id)).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Owned> {
        let id = self.args.execution_id;
        let subject = Subject::load(tx, id).await?;
        if !subject.execution.is_runnable() {
            return Err(ContentionKind::ExecutionNotEligible.into());
        }
        if live_grant(tx, id).await?.is_some() {
            return Err(StateKind::GrantAlreadyExists.into());
        }
        if subject.execution.lane != self.args.lane_id {
            return Err(ContentionKind::ExecutionNotInEligibleSet.into());
        }
        if !subject.execution.is_eligible() || is_being_cancelled(tx, &subject.execution).await? {
            return Err(ContentionKind::ExecutionNotEligible.into());
        }
        take(tx, subject, self.taker.clone(), self.attempt_id, None).await
    }
}
