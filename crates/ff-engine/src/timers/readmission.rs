//! The time has come to try a denied execution again.

use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::state::EligibilityState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::records::Execution;
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Makes the execution claimable again; the next claim asks its budgets and quotas anew.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, execution: Execution, _now: TimestampMs) -> Result<bool> {
    changes(engine, Key::execution(execution.id), Readmit { execution: execution.id }).await
}

struct Readmit {
    execution: ExecutionId,
}

#[async_trait::async_trait]
impl Op for Readmit {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(mut subject) = Subject::find(tx, self.execution).await? else { return Ok(()) };
        let now = tx.now();
        let denied = matches!(
            subject.execution.state().eligibility_state,
            EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota
        );
        if denied && subject.execution.wake_at.is_some_and(|at| at.is_due(now)) {
            subject.execution.promote(now);
            subject.save(tx);
        }
        Ok(())
    }
}
