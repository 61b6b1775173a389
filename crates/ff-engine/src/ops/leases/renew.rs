//! The owner keeps its lease.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::backend::leases::LeaseRenewal;
use ff_core::backend::subscriptions::LeaseChange;
use ff_core::partition::Partition;

use crate::key::Key;
use crate::lifecycle::Subject;
use crate::ops::attempts::Actor;
use crate::store::{Op, Tx};

pub(super) struct Renew {
    pub(super) actor: Actor,
    pub(super) ttl_ms: u64,
}

#[async_trait]
impl Op for Renew {
    type Out = Result<LeaseRenewal>;

    fn home(&self) -> Partition {
        self.actor.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.actor.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<LeaseRenewal>> {
        let mut subject = match self.actor.own(tx).await? {
            Ok(subject) => subject,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let now = tx.now();
        subject.execution.renew(self.ttl_ms, now);
        let renewal = LeaseRenewal { expires_at_ms: now.plus(self.ttl_ms), lease_epoch: subject.execution.epoch };
        if let Some(lease) = &subject.execution.lease {
            let change = LeaseChange::Renewed {
                lease_id: lease.id,
                lease_epoch: subject.execution.epoch,
                worker_instance_id: lease.worker_instance_id.clone(),
                expires_at: lease.expires_at,
            };
            subject.emit_lease(tx, change);
        }
        subject.save_unprojected(tx);
        Ok(Ok(renewal))
    }
}
