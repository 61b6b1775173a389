//! An operator takes a lease away.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::backend::leases::{RevokeLeaseArgs, RevokeLeaseResult, RevokeNotNeeded};
use ff_core::backend::subscriptions::{LeaseChange, RevokedBy};
use ff_core::error::{ContentionKind, StateKind};
use ff_core::partition::Partition;
use ff_core::state::{OwnershipState, StreamCloseReason};

use crate::key::Key;
use crate::lifecycle::{Subject, close_stream, mark_expired, stored_ownership};
use crate::store::{Op, Tx};

pub(super) struct Revoke {
    pub(super) args: RevokeLeaseArgs,
}

#[async_trait]
impl Op for Revoke {
    type Out = RevokeLeaseResult;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.args.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<RevokeLeaseResult> {
        let mut subject = Subject::load(tx, self.args.execution_id).await?;
        if !subject.execution.is_active() {
            let detail = stored_ownership(&subject.execution.ownership()).not_active();
            return Err(ContentionKind::ExecutionNotActive(detail).into());
        }
        if subject.execution.is_overdue(tx.now()) {
            mark_expired(tx, &mut subject).await?;
        }
        match self.not_needed(&subject)? {
            Some(reason) => Ok(RevokeLeaseResult::AlreadySatisfied { reason }),
            None => self.revoke(tx, subject).await,
        }
    }
}

impl Revoke {
    fn not_needed(&self, subject: &Subject) -> Result<Option<RevokeNotNeeded>> {
        let execution = &subject.execution;
        match execution.state().ownership_state {
            OwnershipState::LeaseRevoked => return Ok(Some(RevokeNotNeeded::AlreadyRevoked)),
            OwnershipState::LeaseExpiredReclaimable => return Ok(Some(RevokeNotNeeded::AlreadyExpired)),
            OwnershipState::Leased => {}
            OwnershipState::Unowned => return Err(ContentionKind::NoActiveLease.into()),
        }
        let Some(lease) = &execution.lease else { return Ok(Some(RevokeNotNeeded::NoActiveLease)) };
        if self.args.expected_lease_id.is_some_and(|expected| expected != lease.id) {
            return Err(StateKind::StaleLease.into());
        }
        let other = self.args.worker_instance_id.as_ref().is_some_and(|wanted| *wanted != lease.worker_instance_id);
        Ok(other.then_some(RevokeNotNeeded::DifferentWorkerInstanceId))
    }

    async fn revoke(&self, tx: &mut dyn Tx, mut subject: Subject) -> Result<RevokeLeaseResult> {
        subject.execution.revoke_lease(self.args.reason.clone(), tx.now());
        close_stream(tx, &subject.execution, StreamCloseReason::LeaseRevoked).await?;
        let Some(lease) = subject.execution.lease.clone() else {
            return Ok(RevokeLeaseResult::AlreadySatisfied { reason: RevokeNotNeeded::NoActiveLease });
        };
        let (lease_id, lease_epoch) = (lease.id, subject.execution.epoch);
        let change = LeaseChange::Revoked {
            lease_id,
            lease_epoch,
            prev_owner: lease.worker_instance_id,
            revoked_by: RevokedBy::Operator,
            reason: self.args.reason.clone(),
        };
        subject.emit_lease(tx, change);
        subject.save(tx);
        Ok(RevokeLeaseResult::Revoked { lease_id, lease_epoch })
    }
}
