//! An execution stays with the worker that owns it, and is taken back when the worker is gone.

mod expire;
mod grant;
mod listing;
mod lost;
mod reclaim;
mod renew;
mod revoke;

use async_trait::async_trait;
use ff_core::backend::Leases;
use ff_core::backend::leases::{
    AwaitLostLeasesArgs, ExpirePhase, IssueReclaimGrantArgs, IssueReclaimGrantOutcome, LeaseRenewal,
    ListExpiredLeasesArgs, ListExpiredLeasesResult, LostLease, ReclaimExecutionArgs, ReclaimExecutionOutcome,
    RenewLeaseArgs, RenewLeaseResult, RevokeLeaseArgs, RevokeLeaseResult,
};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, check_free_string};
use ff_core::rules::fence::{CancelSource, FenceRule};
use ff_core::{Result, TimestampMs};

pub(crate) use expire::{Expire, MarkExpired};
use grant::IssueGrant;
use reclaim::{Reclaim, Reclaimed};
use renew::Renew;
use revoke::Revoke;

use super::attempts::Actor;
use super::check_duration;
use crate::engine::Engine;
use crate::key::Key;
use crate::store::Store;
use crate::timers::witness::witness;

#[async_trait]
impl<S: Store> Leases for Engine<S> {
    async fn renew(&self, handle: &Handle) -> Result<LeaseRenewal> {
        let owner = self.open_handle(handle)?;
        check_duration("lease_ttl_ms", owner.lease_ttl_ms)?;
        self.run(Renew { actor: Actor::by_handle(&owner), ttl_ms: owner.lease_ttl_ms }).await?
    }

    async fn renew_lease(&self, args: RenewLeaseArgs) -> Result<RenewLeaseResult> {
        self.check_partition(args.execution_id)?;
        let rule = FenceRule::Mandatory;
        let source = CancelSource::LeaseHolder;
        let actor = Actor::by_fence(args.execution_id, args.fence, args.attempt_index, &source, rule)?;
        check_duration("lease_ttl_ms", args.lease_ttl_ms)?;
        let renewed = self.run(Renew { actor, ttl_ms: args.lease_ttl_ms }).await??;
        Ok(RenewLeaseResult::Renewed { expires_at: renewed.expires_at_ms })
    }

    async fn mark_lease_expired_if_due(&self, execution_id: ExecutionId) -> Result<()> {
        self.check_partition(execution_id)?;
        self.run(MarkExpired { execution_id }).await
    }

    async fn revoke_lease(&self, args: RevokeLeaseArgs) -> Result<RevokeLeaseResult> {
        self.check_partition(args.execution_id)?;
        check_free_string("reason", &args.reason)?;
        self.run(Revoke { args }).await
    }

    async fn issue_reclaim_grant(&self, args: IssueReclaimGrantArgs) -> Result<IssueReclaimGrantOutcome> {
        self.check_partition(args.execution_id)?;
        check_duration("grant_ttl_ms", args.grant_ttl_ms)?;
        let grant_id = self.mint().await?;
        self.run(IssueGrant { args, grant_id }).await?
    }

    async fn reclaim_execution(&self, args: ReclaimExecutionArgs) -> Result<ReclaimExecutionOutcome> {
        self.check_partition(args.execution_id)?;
        check_duration("lease_ttl_ms", args.lease_ttl_ms)?;
        let execution_id = args.execution_id;
        Ok(match self.run(Reclaim { args }).await? {
            Reclaimed::Owned(owned) => {
                ReclaimExecutionOutcome::Claimed { handle: self.handle_of(&owned.execution, owned.kind)? }
            }
            Reclaimed::Refused { detail } => ReclaimExecutionOutcome::NotReclaimable { execution_id, detail },
            Reclaimed::NoGrant => ReclaimExecutionOutcome::GrantNotFound { execution_id },
            Reclaimed::AtCap { cap, owes } => {
                self.settle(execution_id, owes).await;
                ReclaimExecutionOutcome::ReclaimCapExceeded { execution_id, reclaim_count: cap }
            }
        })
    }

    async fn expire_execution(&self, execution_id: ExecutionId, phase: ExpirePhase, now: TimestampMs) -> Result<()> {
        self.check_partition(execution_id)?;
        self.expire(execution_id, phase, now).await.map(drop)
    }

    async fn list_expired_leases(&self, args: ListExpiredLeasesArgs) -> Result<ListExpiredLeasesResult> {
        listing::list(&self.store, args).await
    }

    async fn await_lost_leases(&self, args: AwaitLostLeasesArgs) -> Result<Vec<LostLease>> {
        lost::await_lost(self, args).await
    }
}

impl<S: Store> Engine<S> {
    /// Acts on a timer of an execution, if it is really due; says whether it was.
    pub(crate) async fn expire(&self, execution_id: ExecutionId, phase: ExpirePhase, now: TimestampMs) -> Result<bool> {
        let uniform = self.settings.entropy.factor();
        let expire = Expire { execution_id, phase, now, uniform };
        let (changed, owes) = witness(self, Key::execution(execution_id), expire).await?;
        self.settle(execution_id, owes).await;
        Ok(changed)
    }
}
