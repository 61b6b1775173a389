//! A delay is over.

use async_trait::async_trait;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::state::EligibilityState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::{Subject, dependencies};
use crate::records::Execution;
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;

/// Makes the execution claimable.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, now: TimestampMs) -> Result<bool> {
    promote(engine, record.id, now).await
}

/// Makes a delayed execution claimable once its time has come by `now` and by the store's clock; sends it to its dependencies
/// while those are undecided. Its attempt state stays. Anything else is left alone. Says whether it did anything.
pub(crate) async fn promote<S: Store>(engine: &Engine<S>, execution_id: ExecutionId, now: TimestampMs) -> Result<bool> {
    changes(engine, Key::execution(execution_id), Promote { execution_id, now }).await
}

struct Promote {
    execution_id: ExecutionId,
    now: TimestampMs,
}

#[async_trait]
impl Op for Promote {
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
        let delayed = execution.state().eligibility_state == EligibilityState::NotEligibleUntilTime;
        // A delay without a time counts as over.
        let early = execution.wake_at.is_some_and(|at| !at.is_due(now)) && !is_on(Fault::DelayCutShort);
        if !delayed || early {
            return Ok(());
        }
        if dependencies::holds(tx, execution).await? {
            execution.wait_for_dependencies(tx.now());
        } else {
            execution.promote(tx.now());
        }
        subject.save(tx);
        Ok(())
    }
}
