//! A worker is permitted to take over an execution whose lease was lost.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::backend::claims::Grant as GrantedTo;
use ff_core::backend::leases::{IssueReclaimGrantArgs, IssueReclaimGrantOutcome};
use ff_core::capability::{CapabilitySide, check_tokens};
use ff_core::error::StateKind;
use ff_core::partition::{Partition, PartitionKey};
use uuid::Uuid;

use super::reclaim::{cap, lost};
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::{Grant, GrantKind};
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
        if reclaim_count >= cap(tx, execution_id, None).await? {
            return Ok(Ok(IssueReclaimGrantOutcome::ReclaimCapExceeded { execution_id, reclaim_count }));
        }
        let now = tx.now();
        if tx.get::<Grant>(Key::grant(execution_id)).await?.is_some_and(|grant| grant.is_live(now)) {
            return Ok(Err(StateKind::GrantAlreadyExists.into()));
        }
        if let Err(error) = check_tokens(CapabilitySide::Worker, &self.args.worker_capabilities) {
            return Ok(Err(error));
        }
        let missing = subject.execution.class.requirement.missing(&self.args.worker_capabilities);
        if !missing.is_empty() {
            subject.execution.last_capability_mismatch_at = Some(now);
            subject.save(tx);
            let detail = format!("capability_mismatch: {missing}");
            return Ok(Ok(IssueReclaimGrantOutcome::NotReclaimable { execution_id, detail }));
        }
        Ok(Ok(IssueReclaimGrantOutcome::Granted(self.grant(tx, &subject))))
    }
}

impl IssueGrant {
    fn grant(&self, tx: &mut dyn Tx, subject: &Subject) -> GrantedTo {
        let args = &self.args;
        let now = tx.now();
        let grant = Grant {
            execution: args.execution_id,
            kind: GrantKind::Reclaim,
            id: self.grant_id,
            lane: subject.execution.lane.clone(),
            worker_id: args.worker_id.clone(),
            worker_instance_id: args.worker_instance_id.clone(),
            capabilities: args.worker_capabilities.clone(),
            admitted_by: Vec::new(),
            created_at: now,
            expires_at: now.plus(args.grant_ttl_ms),
        };
        let granted = GrantedTo {
            kind: GrantKind::Reclaim,
            execution_id: args.execution_id,
            partition_key: PartitionKey::from(args.execution_id.partition()),
            grant_key: grant.grant_key(),
            expires_at_ms: grant.expires_at,
            lane_id: grant.lane.clone(),
        };
        tx.put(grant);
        granted
    }
}
