//! Closing a waitpoint that no suspension will use.

use ff_core::Result;
use ff_core::error::ContentionKind;
use ff_core::ids::{ExecutionId, WaitpointId};
use ff_core::partition::Partition;
use ff_core::state::CloseReason;

use crate::key::Key;
use crate::records::Waitpoint;
use crate::store::{Op, Tx};

pub(super) struct CloseWaitpoint {
    pub(super) execution: ExecutionId,
    pub(super) waitpoint: WaitpointId,
}

#[async_trait::async_trait]
impl Op for CloseWaitpoint {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::waitpoint(self.home(), self.waitpoint)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let found = tx.get::<Waitpoint>(Key::waitpoint(self.home(), self.waitpoint)).await?;
        let own = found.filter(|waitpoint| waitpoint.execution == self.execution);
        let mut waitpoint = own.ok_or(ContentionKind::WaitpointNotFound)?;
        if waitpoint.state.is_open() {
            waitpoint.close(CloseReason::NeverCommitted, tx.now());
            tx.put(waitpoint);
        }
        Ok(())
    }
}
