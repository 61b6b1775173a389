//! A worker takes over an execution whose lease was lost.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::backend::leases::ReclaimExecutionArgs;
use ff_core::ids::LaneId;
use ff_core::partition::Partition;

use crate::key::Key;
use crate::lifecycle::{Subject, mark_expired};
use crate::records::{GrantKind, Taker};
use crate::scheduler::grants::live_grant;
use crate::scheduler::ownership::{Owned, end_over_cap, is_being_cancelled, reclaim_cap, take};
use crate::store::{Op, Tx};

pub(super) struct Reclaim {
    pub(super) args: ReclaimExecutionArgs,
}

/// What became of a reclaim.
pub(super) enum Reclaimed {
    /// The caller owns it.
    Owned(Box<Owned>),
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
        let cap = reclaim_cap(tx, &subject.execution, args.max_reclaim_count).await?;
        if subject.execution.reclaim_count >= cap {
            let owes = subject.execution.owes_quotas();
            end_over_cap(tx, subject).await?;
            return Ok(Reclaimed::AtCap { cap, owes });
        }
        let taker = Taker {
            lease_id: args.lease_id,
            worker_id: args.worker_id.clone(),
            worker_instance_id: args.worker_instance_id.clone(),
            ttl_ms: args.lease_ttl_ms,
        };
        Ok(Reclaimed::Owned(Box::new(take(tx, subject, taker, args.attempt_id, None).await?)))
    }
}

impl Reclaim {
    /// Whether the caller holds a live grant. Checked before the cap, so that a stranger cannot end an execution.
    async fn is_granted(&self, tx: &mut dyn Tx) -> Result<bool> {
        let grant = live_grant(tx, self.args.execution_id).await?;
        Ok(grant.is_some_and(|grant| {
            grant.kind == GrantKind::Reclaim
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
    } else if is_being_cancelled(tx, execution).await? {
        Err("flow_cancelled".to_owned())
    } else {
        Ok(())
    })
}
