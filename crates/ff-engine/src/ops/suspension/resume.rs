//! Going on regardless of the condition.

use ff_core::backend::suspension::ResumeTrigger;
use ff_core::error::StateKind;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::state::{CloseReason, PublicState};
use ff_core::{EngineError, Result};

use crate::key::Key;
use crate::lifecycle::{self, Subject};
use crate::store::{Op, Tx};

pub(super) struct Resume {
    pub(super) execution: ExecutionId,
    pub(super) trigger: ResumeTrigger,
    pub(super) delay_ms: u64,
}

#[async_trait::async_trait]
impl Op for Resume {
    type Out = PublicState;

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<PublicState> {
        let mut subject = Subject::load(tx, self.execution).await?;
        if !subject.execution.is_suspended() || subject.execution.suspension.is_none() {
            return Err(EngineError::State(StateKind::ExecutionNotSuspended));
        }
        let resume = lifecycle::Resume { reason: CloseReason::Resumed, trigger: self.trigger, delay_ms: self.delay_ms };
        lifecycle::resume(tx, &mut subject, resume).await?;
        Ok(subject.execution.public_state())
    }
}
