//! Cancellations the engine itself decides on: a cancelled flow, a decided group, a breached budget.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;

use super::{Ending, Subject, finish};
use crate::key::Key;
use crate::store::{Op, Tx};

/// Cancels one execution from any state that is not terminal, whoever owns it, and advances its graph. Says whether it did: not when it was over already, or is gone.
#[derive(Clone, Debug)]
pub(crate) struct CancelExecution {
    pub(crate) execution_id: ExecutionId,
    pub(crate) reason: String,
    /// Who is recorded as the one that cancelled.
    pub(crate) by: String,
}

#[async_trait]
impl Op for CancelExecution {
    type Out = bool;

    fn home(&self) -> Partition {
        self.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        match Subject::find(tx, self.execution_id).await? {
            Some(subject) if !subject.execution.is_terminal() => {
                finish(tx, subject, Ending::cancelled(&self.reason, &self.by)).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
