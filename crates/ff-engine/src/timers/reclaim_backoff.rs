//! The pause before a lost execution is handed out again is over.

use async_trait::async_trait;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::state::OwnershipState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::Execution;
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Lets claims take the execution over.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, now: TimestampMs) -> Result<bool> {
    changes(engine, Key::execution(record.id), Open { execution_id: record.id, now }).await
}

struct Open {
    execution_id: ExecutionId,
    now: TimestampMs,
}

#[async_trait]
impl Op for Open {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(mut subject) = Subject::find(tx, self.execution_id).await? else { return Ok(()) };
        let now = self.now.min(tx.now());
        let execution = &mut subject.execution;
        let expired = execution.state().ownership_state == OwnershipState::LeaseExpiredReclaimable;
        if expired && !execution.reclaim_open && execution.reclaim_at.is_some_and(|at| at.is_due(now)) {
            execution.open_for_reclaim(tx.now());
            subject.save(tx);
        }
        Ok(())
    }
}
