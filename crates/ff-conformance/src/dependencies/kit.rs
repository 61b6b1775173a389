//! Short ways to edges.

use ff_core::Result;
use ff_core::backend::dependencies::{
    ApplyDependencyToChildArgs, ApplyDependencyToChildResult, ResolveDependencyArgs, StageDependencyEdgeArgs,
    StageDependencyEdgeResult,
};
use ff_core::ids::{EdgeId, ExecutionId, FlowId};
use ff_core::state::TerminalOutcome;

use crate::World;
use crate::flows::kit::revision;

/// An edge and where it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(super) flow: FlowId,
    pub(super) id: EdgeId,
    pub(super) from: ExecutionId,
    pub(super) to: ExecutionId,
}

impl Edge {
    pub(super) fn new(world: &World, flow: FlowId, from: ExecutionId, to: ExecutionId) -> Self {
        Self { flow, id: EdgeId::from_uuid(world.uuid()), from, to }
    }

    /// What stages it at a revision.
    pub(super) fn at(&self, expected_graph_revision: u64) -> StageDependencyEdgeArgs {
        StageDependencyEdgeArgs {
            flow_id: self.flow,
            edge_id: self.id,
            upstream_execution_id: self.from,
            downstream_execution_id: self.to,
            dependency_kind: "success_only".to_owned(),
            data_passing_ref: None,
            expected_graph_revision,
        }
    }

    pub(super) const fn application(&self) -> ApplyDependencyToChildArgs {
        ApplyDependencyToChildArgs {
            flow_id: self.flow,
            edge_id: self.id,
            upstream_execution_id: self.from,
            downstream_execution_id: self.to,
        }
    }

    pub(super) const fn resolution(&self, upstream_outcome: TerminalOutcome) -> ResolveDependencyArgs {
        ResolveDependencyArgs {
            flow_id: self.flow,
            edge_id: self.id,
            upstream_execution_id: self.from,
            downstream_execution_id: self.to,
            upstream_outcome,
        }
    }

    /// Stages it at the current revision.
    pub(super) async fn stage(&self, world: &World) -> Result<StageDependencyEdgeResult> {
        world.backend.stage_dependency_edge(self.at(revision(world, self.flow).await)).await
    }

    pub(super) async fn apply(&self, world: &World) -> Result<ApplyDependencyToChildResult> {
        world.backend.apply_dependency_to_child(self.application()).await
    }
}

/// A staged edge.
pub(super) async fn staged(world: &World, flow: FlowId, from: ExecutionId, to: ExecutionId) -> Edge {
    let edge = Edge::new(world, flow, from, to);
    edge.stage(world).await.unwrap();
    edge
}

/// An edge in force.
pub(super) async fn applied(world: &World, flow: FlowId, from: ExecutionId, to: ExecutionId) -> Edge {
    let edge = staged(world, flow, from, to).await;
    edge.apply(world).await.unwrap();
    edge
}

/// An edge in force of this kind.
pub(crate) async fn applied_as(world: &World, kind: &str, flow: FlowId, from: ExecutionId, to: ExecutionId) -> Edge {
    let edge = Edge::new(world, flow, from, to);
    let args = StageDependencyEdgeArgs { dependency_kind: kind.to_owned(), ..edge.at(revision(world, flow).await) };
    world.backend.stage_dependency_edge(args).await.unwrap();
    edge.apply(world).await.unwrap();
    edge
}
