//! A worker is permitted to take over an execution whose lease was lost.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::backend::leases::{IssueReclaimGrantArgs, IssueReclaimGrantOutcome};
use ff_core::capability::{CapabilitySide, check_tokens};
use ff_core::error::StateKind;
use ff_core::partition::Partition;
use uuid::Uuid;

use super::reclaim::lost;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::GrantKind;
use crate::scheduler::grants::{Holder, live_grant, put_grant, require_capabilities, shown};
use crate::scheduler::ownership::reclaim_cap;
use crate::store::{Op, Tx};

pub(super) struct IssueGrant {
    pub(super) args: IssueReclaimGrantArgs,
    pub(super) grant_id: Uuid,
}

#[async_trait]
impl Op for IssueGrant {
    type Out = Result<IssueReclaimGrantOutcome>;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let mut keys = Subject::keys(self.args.execution_id);
        keys.push(Key::grant(self.args.execution_id));
        keys
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<IssueReclaimGrantOutcome>> {
        let execution_id = self.args.execution_id;
        let mut subject = Subject::load(tx, execution_id).await?;
        if let Err(detail) = lost(tx, &mut subject, &self.args.lane_id).await? {
            return Ok(Ok(IssueReclaimGrantOutcome::NotReclaimable { execution_id, detail }));
        }
        let reclaim_count = subject.execution.reclaim_count;
        if reclaim_count >= reclaim_cap(tx, &subject.execution, None).await? {
            return Ok(Ok(IssueReclaimGrantOutcome::ReclaimCapExceeded { execution_id, reclaim_count }));
        }
        if live_grant(tx, execution_id).await?.is_some() {
            return Ok(Err(StateKind::GrantAlreadyExists.into()));
        }
        if let Err(error) = check_tokens(CapabilitySide::Worker, &self.args.worker_capabilities) {
            return Ok(Err(error));
        }
        let missing = subject.execution.class.requirement.missing(&self.args.worker_capabilities);
        if require_capabilities(tx, &mut subject, &self.args.worker_capabilities).is_err() {
            let detail = format!("capability_mismatch: {missing}");
            return Ok(Ok(IssueReclaimGrantOutcome::NotReclaimable { execution_id, detail }));
        }
        let holder = Holder {
            worker_id: self.args.worker_id.clone(),
            worker_instance_id: self.args.worker_instance_id.clone(),
            capabilities: self.args.worker_capabilities.clone(),
        };
        let ttl_ms = self.args.grant_ttl_ms;
        let grant = put_grant(tx, &subject.execution, GrantKind::Reclaim, &holder, self.grant_id, ttl_ms);
        Ok(Ok(IssueReclaimGrantOutcome::Granted(shown(&grant))))
    }
}
