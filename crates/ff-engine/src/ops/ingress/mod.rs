//! Submission, re-ranking, replay, and the lanes that work enters through.

pub(crate) mod create;
pub(crate) mod lanes;
mod priority;
mod replay;

use ff_core::Result;
use ff_core::backend::Ingress;
use ff_core::backend::ingress::{
    ChangePriorityArgs, ChangePriorityResult, CreateExecutionArgs, CreateExecutionOutcome, CreateExecutionResult,
    LaneInfo, ReplayExecutionArgs, ReplayExecutionResult, SetLaneStateArgs,
};
use ff_core::ids::{LaneId, Namespace};

use crate::engine::Engine;
use crate::store::Store;

#[async_trait::async_trait]
impl<S: Store> Ingress for Engine<S> {
    async fn create_execution(&self, args: CreateExecutionArgs) -> Result<CreateExecutionResult> {
        create::create(self, args).await
    }

    async fn create_executions(&self, batch: Vec<CreateExecutionArgs>) -> Result<Vec<CreateExecutionOutcome>> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for wave in create::waves(batch) {
            let creations = wave.into_iter().map(|args| async { create::create(self, args).await.into() });
            outcomes.extend(futures_util::future::join_all(creations).await);
        }
        Ok(outcomes)
    }

    async fn change_priority(&self, args: ChangePriorityArgs) -> Result<ChangePriorityResult> {
        self.check_partition(args.execution_id)?;
        self.run(priority::ChangePriority { args }).await
    }

    async fn replay_execution(&self, args: ReplayExecutionArgs) -> Result<ReplayExecutionResult> {
        replay::replay(self, args).await
    }

    async fn set_lane_state(&self, args: SetLaneStateArgs) -> Result<LaneInfo> {
        lanes::set_state(self, args).await
    }

    async fn describe_lane(&self, namespace: &Namespace, lane_id: &LaneId) -> Result<Option<LaneInfo>> {
        lanes::describe(self, namespace, lane_id).await
    }
}
