//! Flows: membership, cancellation, summary, and whole graphs in one commit.

pub(crate) mod cancel;
pub(crate) mod membership;
pub(crate) mod projection;
mod reads;
mod spawn;
mod submit;
mod tags;

use async_trait::async_trait;
use ff_core::backend::Flows;
use ff_core::backend::flows::{
    AddExecutionToFlowArgs, AddExecutionToFlowResult, CancelFlowHeader, CancelFlowHeaderArgs, CancelFlowPolicy,
    CancelFlowResult, CancelFlowWait, CreateFlowArgs, CreateFlowResult, FlowSnapshot, ListFlowsPage, SpawnChild,
    SubmitFlowArgs, SubmitFlowResult,
};
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FlowId, NameError, check_free_string};
use ff_core::partition::{Partition, PartitionKey};
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::store::Store;

impl<S: Store> Engine<S> {
    pub(crate) fn flow_home(&self, flow: FlowId) -> Partition {
        self.counts().of_flow(flow)
    }
}

/// A kind is opaque, but not empty.
pub(crate) fn check_kind(kind: &str) -> Result<()> {
    if kind.is_empty() {
        return Err(NameError::Empty { what: "flow_kind" }.into());
    }
    Ok(check_free_string("flow_kind", kind)?)
}

#[async_trait]
impl<S: Store> Flows for Engine<S> {
    async fn create_flow(&self, args: CreateFlowArgs) -> Result<CreateFlowResult> {
        check_kind(&args.flow_kind)?;
        self.run(membership::CreateFlow { home: self.flow_home(args.flow_id), args }).await
    }

    async fn submit_flow(&self, args: SubmitFlowArgs) -> Result<SubmitFlowResult> {
        submit::submit(self, args).await
    }

    async fn spawn_children(&self, handle: &Handle, children: Vec<SpawnChild>) -> Result<Vec<ExecutionId>> {
        spawn::spawn(self, handle, children).await
    }

    async fn add_execution_to_flow(&self, args: AddExecutionToFlowArgs) -> Result<AddExecutionToFlowResult> {
        membership::add(self, args).await
    }

    async fn cancel_flow(
        &self,
        flow_id: FlowId,
        policy: CancelFlowPolicy,
        wait: CancelFlowWait,
    ) -> Result<CancelFlowResult> {
        cancel::cancel_flow(self, flow_id, policy, wait).await
    }

    async fn cancel_flow_header(&self, args: CancelFlowHeaderArgs) -> Result<CancelFlowHeader> {
        cancel::cancel_header(self, args).await
    }

    async fn ack_cancel_member(&self, flow_id: FlowId, execution_id: ExecutionId) -> Result<()> {
        cancel::acknowledge(self, flow_id, execution_id).await
    }

    async fn describe_flow(&self, flow_id: FlowId) -> Result<Option<FlowSnapshot>> {
        reads::describe(self, flow_id).await
    }

    async fn list_flows(&self, partition: &PartitionKey, cursor: Option<FlowId>, limit: u32) -> Result<ListFlowsPage> {
        reads::list(self, partition, cursor, limit).await
    }

    async fn set_flow_tag(&self, flow_id: FlowId, key: &str, value: &str) -> Result<()> {
        tags::set(self, flow_id, key, value).await
    }

    async fn get_flow_tag(&self, flow_id: FlowId, key: &str) -> Result<Option<String>> {
        tags::get(self, flow_id, key).await
    }

    async fn project_flow_summary(&self, flow_id: FlowId, _now: TimestampMs) -> Result<bool> {
        projection::project(self, flow_id).await
    }
}
