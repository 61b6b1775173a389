//! Another place in the queue.

use ff_core::backend::ingress::{ChangePriorityArgs, ChangePriorityResult};
use ff_core::error::ContentionKind;
use ff_core::partition::Partition;
use ff_core::{EngineError, Result};

use crate::event::EventBody;
use crate::key::Key;
use crate::lifecycle::Subject;
use crate::store::{Op, Tx};

pub(super) struct ChangePriority {
    pub(super) args: ChangePriorityArgs,
}

#[async_trait::async_trait]
impl Op for ChangePriority {
    type Out = ChangePriorityResult;

    fn home(&self) -> Partition {
        self.args.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.args.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<ChangePriorityResult> {
        let mut subject = Subject::load(tx, self.args.execution_id).await?;
        if !subject.execution.is_eligible() {
            return Err(ContentionKind::ExecutionNotEligible.into());
        }
        let lane = self.args.lane_id.as_str();
        if !lane.is_empty() && lane != subject.execution.lane.as_str() {
            return Err(EngineError::invalid(format_args!(
                "lane_id: the execution is in lane {}, not {lane}",
                subject.execution.lane
            )));
        }
        let from = subject.execution.priority;
        subject.execution.reprioritise(self.args.new_priority, tx.now());
        let to = subject.execution.priority;
        if from != to {
            subject.emit(tx, EventBody::PriorityChanged { from, to });
            subject.save(tx);
        }
        Ok(ChangePriorityResult::Changed { execution_id: self.args.execution_id })
    }
}
