//! Edges: adding them to a graph without closing a cycle, and showing them.

use std::collections::{HashSet, VecDeque};

use async_trait::async_trait;
use ff_core::backend::dependencies::{
    DependencyKind, EdgeDirection, EdgeSnapshot, StageDependencyEdgeArgs, StageDependencyEdgeResult,
};
use ff_core::error::{ConflictKind, ContentionKind, StateKind};
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{EdgeId, ExecutionId, FlowId, check_free_string};
use ff_core::partition::Partition;
use ff_core::state::EdgeState;
use ff_core::{EngineError, Result};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::lifecycle::graph::current_group;
use crate::ops::flows::membership::open_flow;
use crate::records::{Edge, EdgeGroup, Execution, Flow};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// Members the search for a cycle visits; a larger graph is refused as if it had one.
const VISITED_MAX: usize = 1_000;

/// Edges read at once.
const PAGE: usize = 500;

pub(super) async fn stage<S: Store>(
    engine: &Engine<S>,
    args: StageDependencyEdgeArgs,
) -> Result<StageDependencyEdgeResult> {
    let kind: DependencyKind = args.dependency_kind.parse().map_err(EngineError::invalid)?;
    check_free_string("data_passing_ref", args.data_passing_ref.as_deref().unwrap_or_default())?;
    if args.upstream_execution_id == args.downstream_execution_id {
        return Err(ConflictKind::SelfReferencingEdge.into());
    }
    engine.run(StageEdge { home: engine.flow_home(args.flow_id), kind, args }).await
}

struct StageEdge {
    home: Partition,
    kind: DependencyKind,
    args: StageDependencyEdgeArgs,
}

#[async_trait]
impl Op for StageEdge {
    type Out = StageDependencyEdgeResult;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home, self.args.flow_id), Key::edge(self.home, self.args.flow_id, self.args.edge_id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<StageDependencyEdgeResult> {
        let args = &self.args;
        let mut flow = open_flow(tx, self.home, args.flow_id).await?;
        if flow.graph_revision != args.expected_graph_revision && !is_on(Fault::StaleRevisionAccepted) {
            return Err(ContentionKind::StaleGraphRevision.into());
        }
        member(tx, &flow, args.upstream_execution_id).await?;
        let downstream = member(tx, &flow, args.downstream_execution_id).await?;
        if reaches(tx, &flow, args.downstream_execution_id, args.upstream_execution_id).await? {
            return Err(ConflictKind::CycleDetected.into());
        }
        if let Some(existing) = tx.get::<Edge>(Key::edge(self.home, flow.id, args.edge_id)).await? {
            return Err(ConflictKind::DependencyAlreadyExists { existing: Box::new(snapshot(existing)) }.into());
        }
        self.insert(tx, &flow, &downstream).await?;
        flow.add_edge(tx.now());
        let new_graph_revision = flow.graph_revision;
        tx.put(flow);
        Ok(StageDependencyEdgeResult::Staged { edge_id: args.edge_id, new_graph_revision })
    }
}

impl StageEdge {
    /// The edge counts in its group from now on, so that the group is not decided without it.
    async fn insert(&self, tx: &mut dyn Tx, flow: &Flow, downstream: &Execution) -> Result<()> {
        let (generation, group) = current_group(tx, downstream).await?;
        let edge = Edge {
            home: self.home,
            flow: flow.id,
            id: self.args.edge_id,
            upstream: self.args.upstream_execution_id,
            downstream: downstream.id,
            kind: self.kind,
            data_passing_ref: self.args.data_passing_ref.clone().filter(|name| !name.is_empty()),
            state: EdgeState::Staged,
            generation,
            created_at: tx.now(),
            spawned: false,
        };
        let mut group = group.unwrap_or_else(|| EdgeGroup::empty(flow, downstream.id, generation, Default::default()));
        group.stage(&edge);
        tx.put(edge);
        tx.put(group);
        Ok(())
    }
}

/// A member of the flow, or `ExecutionNotInFlow`.
pub(super) async fn member(tx: &mut dyn Tx, flow: &Flow, id: ExecutionId) -> Result<Execution> {
    let found = if id.partition() == flow.home { tx.get::<Execution>(Key::execution(id)).await? } else { None };
    found.filter(|execution| execution.flow_id == Some(flow.id)).ok_or(StateKind::ExecutionNotInFlow.into())
}

/// Whether one member waits for another through any number of edges; also when that takes too long to tell.
async fn reaches(tx: &mut dyn Tx, flow: &Flow, from: ExecutionId, to: ExecutionId) -> Result<bool> {
    if is_on(Fault::CycleAccepted) {
        return Ok(false);
    }
    let mut visited = HashSet::from([from]);
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        let mut after: Option<Position> = None;
        loop {
            let index = Index::EdgesFrom(flow.home, flow.id, node);
            let page = tx.range_of::<Edge>(index, Bounds::first(PAGE).after(after.take())).await?;
            for edge in &page {
                if edge.downstream == to {
                    return Ok(true);
                }
                if visited.insert(edge.downstream) {
                    queue.push_back(edge.downstream);
                }
            }
            if visited.len() > VISITED_MAX {
                return Ok(true);
            }
            if page.len() < PAGE {
                break;
            }
            after = page.last().map(Edge::position);
        }
    }
    Ok(false)
}

fn snapshot(edge: Edge) -> EdgeSnapshot {
    EdgeSnapshot {
        edge_id: edge.id,
        flow_id: edge.flow,
        upstream_execution_id: edge.upstream,
        downstream_execution_id: edge.downstream,
        dependency_kind: edge.kind,
        data_passing_ref: edge.data_passing_ref,
        edge_state: edge.state,
        created_at: edge.created_at,
    }
}

pub(super) async fn list<S: Store>(
    engine: &Engine<S>,
    flow: FlowId,
    direction: EdgeDirection,
) -> Result<Vec<EdgeSnapshot>> {
    let home = engine.flow_home(flow);
    let index = [match direction {
        EdgeDirection::Outgoing { from_node } => Index::EdgesFrom(home, flow, from_node),
        EdgeDirection::Incoming { to_node } => Index::EdgesInto(home, flow, to_node),
    }];
    let mut edges = Vec::new();
    let mut after = None;
    loop {
        let page = engine.store.list(&index, &Bounds::first(PAGE).after(after)).await?;
        let whole = page.len() < PAGE;
        after = page.last().map(|listed| listed.position.clone());
        edges.extend(page.into_iter().filter_map(|listed| Edge::try_from(listed.record).ok()).map(snapshot));
        if whole {
            return Ok(edges);
        }
    }
}

pub(super) async fn describe<S: Store>(engine: &Engine<S>, flow: FlowId, edge: EdgeId) -> Result<Option<EdgeSnapshot>> {
    let edge: Option<Edge> = read_one(&engine.store, Key::edge(engine.flow_home(flow), flow, edge)).await?;
    Ok(edge.map(snapshot))
}
