//! Who acts on an execution, and whether it may.

use ff_core::error::ContentionKind;
use ff_core::handle::HandlePayload;
use ff_core::ids::{AttemptIndex, ExecutionId, FenceTriple};
use ff_core::rules::fence::{CancelSource, FenceRule, Presented, check_full};
use ff_core::rules::replay::{Call, Caller, Replayed, replay};
use ff_core::{EngineError, Result, TimestampMs};

use crate::draft::Draft;
use crate::lifecycle::{Subject, fence_check, fenced, parked, stored_ownership};
use crate::records::Execution;
use crate::store::Tx;

/// Whoever claims to own an execution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor {
    pub(crate) execution_id: ExecutionId,
    presented: Presented,
    caller: Caller,
}

/// What the stored ownership says to an actor.
pub(crate) enum Admitted {
    /// It owns the execution.
    Owner(Box<Subject>),
    /// It did the same before, with this outcome.
    Repeated(Replayed, Draft<Execution>),
    /// It may not act. What was learned on the way, an expired lease, is kept.
    Refused(EngineError),
}

impl Actor {
    /// The worker that shows a handle.
    pub(crate) fn by_handle(handle: &HandlePayload) -> Self {
        let (fence, attempt_index) = (handle.fence(), handle.attempt_index);
        Self {
            execution_id: handle.execution_id,
            presented: Presented::Fenced { fence, attempt_index: Some(attempt_index) },
            caller: Caller { fence: Some(fence), attempt_index },
        }
    }

    /// A service that shows a fence, or an operator that needs none.
    ///
    /// # Errors
    /// `InvalidInput` for a partial fence, or for none where the rule wants one.
    pub(crate) fn by_fence(
        execution_id: ExecutionId,
        fence: FenceTriple,
        attempt_index: AttemptIndex,
        source: &CancelSource,
        rule: FenceRule,
    ) -> Result<Self> {
        let presented = fenced(fence, Some(attempt_index), source, rule)?;
        Ok(Self { execution_id, presented, caller: Caller { fence: fence.complete()?, attempt_index } })
    }

    /// Whether it proves ownership, and does not just override it.
    pub(crate) const fn is_owner(&self) -> bool {
        matches!(self.presented, Presented::Fenced { .. })
    }

    /// Whether it owns the execution as that was read; the commit asks again.
    pub(crate) fn seems_to_own(&self, execution: &Execution, now: TimestampMs) -> bool {
        check_full(&stored_ownership(&execution.ownership()), self.presented, now).is_ok()
    }

    /// The execution, if the actor owns it; the refusal otherwise.
    pub(crate) async fn own(&self, tx: &mut dyn Tx) -> Result<Result<Subject>> {
        let mut subject = Subject::load(tx, self.execution_id).await?;
        let checked = fence_check(tx, &mut subject, self.presented).await?;
        Ok(checked.map(|_| subject))
    }

    /// As [`own`](Self::own), but a caller that repeats a call gets the first outcome, as long as nobody owned the execution since.
    pub(crate) async fn enter(&self, tx: &mut dyn Tx, call: Call) -> Result<Admitted> {
        let mut subject = Box::new(Subject::load(tx, self.execution_id).await?);
        let refusal = match fence_check(tx, &mut subject, self.presented).await? {
            Ok(_) => return Ok(Admitted::Owner(subject)),
            Err(refusal) => refusal,
        };
        if !matches!(refusal, EngineError::Contention(ContentionKind::ExecutionNotActive(_))) {
            return Ok(Admitted::Refused(refusal));
        }
        Ok(match replay(call, self.caller, &parked(&subject.execution)) {
            Ok(replayed) => Admitted::Repeated(replayed, subject.execution),
            Err(_) => Admitted::Refused(refusal),
        })
    }
}
