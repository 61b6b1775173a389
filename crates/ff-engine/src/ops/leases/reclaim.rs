//! A worker takes over an execution whose lease was lost.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::backend::leases::ReclaimExecutionArgs;
use ff_core::ids::{AttemptIndex, ExecutionId, LaneId, LeaseEpoch, Namespace};
use ff_core::partition::Partition;
use ff_core::policy::ExecutionPolicy;
use ff_core::rules::retry::FailureClass;

use crate::key::Key;
use crate::lifecycle::{Ending, Handover, Subject, finish, hand_over, mark_expired, policy};
use crate::records::{Grant, GrantKind, Taker};
use crate::store::{Op, Tx};

/// Why an execution failed that lost its lease too often.
const TOO_OFTEN: &str = "max_reclaims_exceeded";

pub(super) struct Reclaim {
    pub(super) args: ReclaimExecutionArgs,
}

/// What became of a reclaim.
pub(super) enum Reclaimed {
    /// The caller owns it.
    Owned { epoch: LeaseEpoch, attempt_index: AttemptIndex, namespace: Namespace },
    /// Not to be had.
    Refused { detail: String },
    /// Not by this caller.
    NoGrant,
    /// Lost too often: it has failed.
    AtCap { cap: u32, owes: bool },
}

#[async_trait]
impl Op for Reclaim {
    type Out = Reclaimed;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        let mut keys = Subject::keys(self.args.execution_id);
        keys.push(Key::grant(self.args.execution_id));
        keys
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Reclaimed> {
        let args = &self.args;
        let mut subject = Subject::load(tx, args.execution_id).await?;
        if let Err(detail) = lost(tx, &mut subject, &args.lane_id).await? {
            return Ok(Reclaimed::Refused { detail });
        }
        if !self.is_granted(tx).await? {
            return Ok(Reclaimed::NoGrant);
        }
        if args.current_attempt_index != subject.execution.attempt_index {
            return Ok(Reclaimed::Refused { detail: "attempt_moved".to_owned() });
        }
        let cap = cap(tx, args.execution_id, args.max_reclaim_count).await?;
        if subject.execution.reclaim_count >= cap {
            let owes = subject.execution.owes_quotas();
            finish(tx, subject, Ending::failed(TOO_OFTEN, FailureClass::InfraCrash.as_str())).await?;
            return Ok(Reclaimed::AtCap { cap, owes });
        }
        let taker = Taker {
            lease_id: args.lease_id,
            worker_id: args.worker_id.clone(),
            worker_instance_id: args.worker_instance_id.clone(),
            ttl_ms: args.lease_ttl_ms,
        };
        hand_over(tx, &mut subject, taker, Handover::Reclaimed { attempt_id: args.attempt_id }, None).await?;
        Ok(Reclaimed::Owned {
            epoch: subject.execution.epoch,
            attempt_index: subject.execution.attempt_index,
            namespace: subject.execution.namespace,
        })
    }
}

impl Reclaim {
    /// Whether the caller holds a live grant. Checked before the cap, so that a stranger cannot end an execution.
    async fn is_granted(&self, tx: &mut dyn Tx) -> Result<bool> {
        let now = tx.now();
        let grant = tx.get::<Grant>(Key::grant(self.args.execution_id)).await?;
        Ok(grant.is_some_and(|grant| {
            grant.kind == GrantKind::Reclaim
                && grant.is_live(now)
                && grant.worker_id == self.args.worker_id
                && grant.worker_instance_id == self.args.worker_instance_id
        }))
    }
}

/// Whether the lease was lost; an overdue one is marked first. Otherwise says why it cannot be reclaimed.
pub(super) async fn lost(tx: &mut dyn Tx, subject: &mut Subject, lane: &LaneId) -> Result<Result<(), String>> {
    if subject.execution.is_overdue(tx.now()) {
        mark_expired(tx, subject).await?;
    }
    let execution = &subject.execution;
    Ok(if !execution.is_active() {
        Err(format!("not_active: {}", execution.state().lifecycle_phase))
    } else if !execution.is_lost() {
        Err("lease_is_held".to_owned())
    } else if execution.lane != *lane {
        Err(format!("other_lane: {}", execution.lane))
    } else {
        Ok(())
    })
}

/// How many lost leases an execution survives: as its policy says, else as the caller asks, else the default.
pub(super) async fn cap(tx: &mut dyn Tx, execution: ExecutionId, asked: Option<u32>) -> Result<u32> {
    Ok(policy(tx, execution).await?.unwrap_or_else(ExecutionPolicy::default).reclaim_cap(asked))
}
