//! Dependencies: edges between members, groups of edges, and what an end means to those who wait.

mod edges;
mod groups;
mod settling;
pub(crate) mod siblings;

use async_trait::async_trait;
use ff_core::Result;
use ff_core::backend::Dependencies;
use ff_core::backend::dependencies::{
    ApplyDependencyToChildArgs, ApplyDependencyToChildResult, CascadeOutcome, EdgeDependencyPolicy, EdgeDirection,
    EdgeSnapshot, FlowEligibility, ResolveDependencyArgs, ResolveDependencyOutcome, SetEdgeGroupPolicyResult,
    SiblingCancelReconcileAction, StageDependencyEdgeArgs, StageDependencyEdgeResult,
};
use ff_core::ids::{EdgeId, ExecutionId, FlowId};

use crate::engine::Engine;
use crate::store::Store;

#[async_trait]
impl<S: Store> Dependencies for Engine<S> {
    async fn stage_dependency_edge(&self, args: StageDependencyEdgeArgs) -> Result<StageDependencyEdgeResult> {
        edges::stage(self, args).await
    }

    async fn set_edge_group_policy(
        &self,
        flow_id: FlowId,
        downstream_execution_id: ExecutionId,
        policy: EdgeDependencyPolicy,
    ) -> Result<SetEdgeGroupPolicyResult> {
        groups::set_policy(self, flow_id, downstream_execution_id, policy).await
    }

    async fn apply_dependency_to_child(
        &self,
        args: ApplyDependencyToChildArgs,
    ) -> Result<ApplyDependencyToChildResult> {
        groups::apply(self, args).await
    }

    async fn resolve_dependency(&self, args: ResolveDependencyArgs) -> Result<ResolveDependencyOutcome> {
        settling::resolve(self, args).await
    }

    async fn cascade_completion(&self, execution_id: ExecutionId) -> Result<CascadeOutcome> {
        settling::cascade(self, execution_id).await
    }

    async fn evaluate_flow_eligibility(&self, execution_id: ExecutionId) -> Result<FlowEligibility> {
        groups::evaluate(self, execution_id).await
    }

    async fn drain_sibling_cancel_group(&self, flow_id: FlowId, downstream_execution_id: ExecutionId) -> Result<()> {
        siblings::drain(self, flow_id, downstream_execution_id).await
    }

    async fn reconcile_sibling_cancel_group(
        &self,
        flow_id: FlowId,
        downstream_execution_id: ExecutionId,
    ) -> Result<SiblingCancelReconcileAction> {
        siblings::reconcile(self, flow_id, downstream_execution_id).await
    }

    async fn list_edges(&self, flow_id: FlowId, direction: EdgeDirection) -> Result<Vec<EdgeSnapshot>> {
        edges::list(self, flow_id, direction).await
    }

    async fn describe_edge(&self, flow_id: FlowId, edge_id: EdgeId) -> Result<Option<EdgeSnapshot>> {
        edges::describe(self, flow_id, edge_id).await
    }
}
