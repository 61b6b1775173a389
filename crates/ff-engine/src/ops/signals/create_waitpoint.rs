//! Issuing a waitpoint ahead of a suspend.

use ff_core::backend::signals::PendingWaitpoint;
use ff_core::error::ConflictKind;
use ff_core::ids::{ExecutionId, LeaseFence, WaitpointId};
use ff_core::partition::Partition;
use ff_core::rules::fence::Presented;
use ff_core::state::CloseReason;
use ff_core::token::Keyring;
use ff_core::{EngineError, Result};

use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::lifecycle::{PENDING_WAITPOINTS_MAX, Subject, fence_check};
use crate::records::Waitpoint;
use crate::store::{Op, Tx};

pub(super) struct CreateWaitpoint {
    pub(super) execution: ExecutionId,
    pub(super) fence: LeaseFence,
    pub(super) waitpoint: WaitpointId,
    pub(super) key: String,
    pub(super) expires_in_ms: u64,
    pub(super) keyring: Keyring,
    /// Open waitpoints of the execution, counted a moment before; a few more or less do not matter.
    pub(super) open: u64,
}

#[async_trait::async_trait]
impl Op for CreateWaitpoint {
    type Out = Result<PendingWaitpoint>;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Self::Out> {
        let mut subject = Subject::load(tx, self.execution).await?;
        if let Err(refusal) = fence_check(tx, &mut subject, Presented::fence(self.fence)).await? {
            return Ok(Err(refusal));
        }
        self.check_free(tx).await?;
        let now = tx.now();
        let is_first = !subject.execution.had_waitpoints();
        let mut waitpoint = Waitpoint::pending(&mut subject.execution, self.waitpoint, self.key.clone(), now);
        let token = self.keyring.sign(&waitpoint.token_subject())?;
        waitpoint.token = Some(token.clone());
        waitpoint.expires_at = Some(now.plus(self.expires_in_ms));
        tx.put(waitpoint);
        if is_first {
            subject.save_unprojected(tx);
        }
        Ok(Ok(PendingWaitpoint { waitpoint_id: self.waitpoint, waitpoint_token: token }))
    }
}

impl CreateWaitpoint {
    /// Neither the key is taken nor are there too many.
    async fn check_free(&self, tx: &mut dyn Tx) -> Result<()> {
        let same_key = Index::OpenWaitpointsNamed(self.execution, self.key.clone());
        for mut holder in tx.range_of::<Waitpoint>(same_key, Bounds::first(PENDING_WAITPOINTS_MAX)).await? {
            let now = tx.now();
            if !holder.has_run_out(now) {
                return Err(ConflictKind::WaitpointAlreadyExists.into());
            }
            // Its time is over, only nobody has closed it yet.
            holder.close(CloseReason::NeverCommitted, now);
            tx.put(holder);
        }
        if self.open >= PENDING_WAITPOINTS_MAX as u64 {
            return Err(EngineError::invalid(format_args!(
                "too_many_pending_waitpoints: at most {PENDING_WAITPOINTS_MAX}"
            )));
        }
        Ok(())
    }
}
