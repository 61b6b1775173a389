//! The execution is called off.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::error::ContentionKind;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{AttemptIndex, ExecutionId, FenceTriple};
use ff_core::partition::Partition;
use ff_core::rules::fence::{CancelRefusal, CancelSource, check_cancel};
use ff_core::rules::replay::{Call, Caller, replay};

use super::{Actor, Admitted};
use crate::key::Key;
use crate::lifecycle::{Ending, Subject, finish, mark_expired, parked, stored_ownership};
use crate::store::{Op, Tx};

/// Why somebody may cancel.
pub(super) enum Proof {
    /// It owns the execution.
    Owner(Actor),
    /// Nobody owns the execution, or the fence holds, or the source needs none.
    Fence { fence: FenceTriple, source: CancelSource },
}

pub(super) struct Cancel {
    pub(super) execution_id: ExecutionId,
    pub(super) reason: String,
    pub(super) by: String,
    pub(super) proof: Proof,
}

#[async_trait]
impl Op for Cancel {
    /// Whether quotas are owed the end of this ownership.
    type Out = Result<bool>;

    fn home(&self) -> Partition {
        self.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<bool>> {
        let admitted = match &self.proof {
            Proof::Owner(actor) => actor.enter(tx, Call::Cancel).await?,
            Proof::Fence { fence, source } => self.enter(tx, *fence, source).await?,
        };
        match admitted {
            Admitted::Owner(subject) => {
                let owes = subject.execution.is_active() && subject.execution.owes_quotas();
                let is_other = matches!(self.proof, Proof::Fence { .. });
                finish(tx, *subject, Ending::cancelled(&self.reason, &self.by).taken(is_other)).await?;
                Ok(Ok(owes))
            }
            Admitted::Repeated(..) => Ok(Ok(false)),
            Admitted::Refused(error) => Ok(Err(error)),
        }
    }
}

impl Cancel {
    async fn enter(&self, tx: &mut dyn Tx, fence: FenceTriple, source: &CancelSource) -> Result<Admitted> {
        let mut subject = Box::new(Subject::load(tx, self.execution_id).await?);
        if subject.execution.is_terminal() && !is_on(Fault::TerminalRewritten) {
            // Already cancelled is a success for anybody, so it does not matter who asks.
            let anybody = Caller { fence: None, attempt_index: AttemptIndex(0) };
            return Ok(match replay(Call::Cancel, anybody, &parked(&subject.execution)) {
                Ok(replayed) => Admitted::Repeated(replayed, subject.execution),
                Err(detail) => Admitted::Refused(ContentionKind::ExecutionNotActive(detail).into()),
            });
        }
        let stored = stored_ownership(&subject.execution.ownership());
        match check_cancel(&stored, fence, source, tx.now()) {
            Ok(()) => Ok(Admitted::Owner(subject)),
            Err(refusal) => {
                if matches!(&refusal, CancelRefusal::Fence(fence) if fence.marks_expired()) {
                    mark_expired(tx, &mut subject).await?;
                }
                Ok(Admitted::Refused(refusal.into()))
            }
        }
    }
}
