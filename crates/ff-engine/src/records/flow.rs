//! Flows, their edges and the groups in which edges are decided.

use std::collections::BTreeMap;

use ff_core::TimestampMs;
use ff_core::backend::dependencies::{DependencyKind, EdgeDependencyPolicy};
use ff_core::backend::flows::CancelFlowPolicy;
use ff_core::ids::{EdgeId, ExecutionId, FlowId, Namespace};
use ff_core::partition::Partition;
use ff_core::rules::edge_groups::{EdgeFate, GroupCounts};
use ff_core::state::{EdgeGroupState, EdgeState, FlowState, PublicState};
use serde::{Deserialize, Serialize};

use super::{Execution, Stored};
use crate::index::{DueKind, Entry, Index, Position};
use crate::key::Key;

/// How a flow was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FlowCancellation {
    pub at: TimestampMs,
    pub reason: String,
    pub policy: CancelFlowPolicy,
}

/// The container of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Flow {
    pub home: Partition,
    pub id: FlowId,
    pub kind: String,
    pub namespace: Namespace,
    pub graph_revision: u64,
    pub node_count: u32,
    pub edge_count: u32,
    /// Members that were purged after they ended, by how they ended.
    pub purged: BTreeMap<PublicState, u32>,
    pub created_at: TimestampMs,
    pub last_mutation_at: TimestampMs,
    pub cancellation: Option<FlowCancellation>,
}

impl Flow {
    /// Whether it still takes members, edges and applications.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.cancellation.is_none()
    }

    /// The authoritative state.
    #[must_use]
    pub const fn state(&self) -> FlowState {
        if self.is_open() { FlowState::Open } else { FlowState::Cancelled }
    }

    /// A new, empty flow.
    #[must_use]
    pub const fn create(home: Partition, id: FlowId, kind: String, namespace: Namespace, now: TimestampMs) -> Self {
        Self {
            home,
            id,
            kind,
            namespace,
            graph_revision: 0,
            node_count: 0,
            edge_count: 0,
            purged: BTreeMap::new(),
            created_at: now,
            last_mutation_at: now,
            cancellation: None,
        }
    }

    /// One more member.
    pub fn add_member(&mut self, now: TimestampMs) {
        self.node_count += 1;
        self.graph_revision += 1;
        self.last_mutation_at = now;
    }

    /// One more edge.
    pub fn add_edge(&mut self, now: TimestampMs) {
        self.edge_count += 1;
        self.graph_revision += 1;
        self.last_mutation_at = now;
    }

    /// Flips it to cancelled.
    pub fn cancel(&mut self, reason: String, policy: CancelFlowPolicy, now: TimestampMs) {
        self.cancellation = Some(FlowCancellation { at: now, reason, policy });
        self.last_mutation_at = now;
    }
}

impl Stored for Flow {
    fn key(&self) -> Key {
        Key::flow(self.home, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::FlowsIn(self.home), Position::by(*self.id.uuid().as_bytes())));
    }
}

/// Tags of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FlowTags {
    pub home: Partition,
    pub flow: FlowId,
    pub tags: BTreeMap<String, String>,
    pub updated_at: TimestampMs,
}

impl Stored for FlowTags {
    fn key(&self) -> Key {
        Key::flow_tags(self.home, self.flow)
    }
}

/// A dependency: the downstream waits for the upstream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Edge {
    pub home: Partition,
    pub flow: FlowId,
    pub id: EdgeId,
    pub upstream: ExecutionId,
    pub downstream: ExecutionId,
    pub kind: DependencyKind,
    pub data_passing_ref: Option<String>,
    pub state: EdgeState,
    /// The group of the downstream it counts in.
    pub generation: u32,
    pub created_at: TimestampMs,
    /// The downstream spawned the upstream.
    #[serde(default)]
    pub spawned: bool,
}

impl Edge {
    /// Its place among the edges of its flow and of its ends.
    #[must_use]
    pub fn position(&self) -> Position {
        Position::by(*self.id.uuid().as_bytes())
    }

    /// Whether the upstream's result reaches the downstream.
    #[must_use]
    pub fn passes_data(&self) -> bool {
        self.data_passing_ref.as_ref().is_some_and(|name| !name.is_empty())
    }
}

impl Stored for Edge {
    fn key(&self) -> Key {
        Key::edge(self.home, self.flow, self.id)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::EdgesOf(self.home, self.flow), self.position()));
        out.push(Entry::new(Index::EdgesFrom(self.home, self.flow, self.upstream), self.position()));
        out.push(Entry::new(Index::EdgesInto(self.home, self.flow, self.downstream), self.position()));
    }
}

/// Upstream siblings to cancel after a group was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SiblingCancel {
    pub reason: String,
    /// Still owed; empty once drained.
    pub siblings: Vec<ExecutionId>,
    pub pending: bool,
    pub due_at: TimestampMs,
}

/// Inbound edges of one downstream, decided together. Generation 0 stands before the first run, each later one before a wait for
/// children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct EdgeGroup {
    pub home: Partition,
    pub flow: FlowId,
    pub downstream: ExecutionId,
    pub generation: u32,
    pub policy: EdgeDependencyPolicy,
    /// Staged edges are part of the total, so a group is not decided before its graph is complete.
    pub counts: GroupCounts,
    /// Edges in force.
    pub applied: u32,
    /// Edges that hand a result on, staged ones included.
    pub data_edges: u32,
    pub state: EdgeGroupState,
    pub decided_at: Option<TimestampMs>,
    pub sibling_cancel: Option<SiblingCancel>,
    /// Its edges come from children that the downstream spawned: their results do not take the place of its input.
    #[serde(default)]
    pub keeps_payload: bool,
    /// Edges in force that come from spawned children which are not over: they hold only a downstream that waits for its children.
    #[serde(default)]
    pub children: u32,
}

impl EdgeGroup {
    /// A group without edges.
    #[must_use]
    pub fn empty(flow: &Flow, downstream: ExecutionId, generation: u32, policy: EdgeDependencyPolicy) -> Self {
        Self {
            home: flow.home,
            flow: flow.id,
            downstream,
            generation,
            policy,
            counts: GroupCounts::default(),
            applied: 0,
            data_edges: 0,
            state: EdgeGroupState::Pending,
            decided_at: None,
            sibling_cancel: None,
            keeps_payload: false,
            children: 0,
        }
    }

    /// Whether it is undecided.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.state == EdgeGroupState::Pending
    }

    /// One more edge belongs to it, though it is not in force yet.
    pub fn stage(&mut self, edge: &Edge) {
        self.counts.total += 1;
        if edge.passes_data() {
            self.data_edges += 1;
        }
    }

    /// The edge from a spawned child belongs to it and is in force.
    pub fn await_child(&mut self, edge: &Edge) {
        self.stage(edge);
        self.applied += 1;
        self.children += 1;
        self.keeps_payload = true;
    }

    /// A satisfied edge does not count in it any more; a decision stands.
    pub fn forget(&mut self, edge: &Edge) {
        self.counts.total = self.counts.total.saturating_sub(1);
        self.counts.succeeded = self.counts.succeeded.saturating_sub(1);
        self.applied = self.applied.saturating_sub(1);
        self.data_edges = self.data_edges.saturating_sub(u32::from(edge.passes_data()));
    }

    /// The upstream of an edge in force is over.
    pub fn settle(&mut self, edge: &Edge, fate: EdgeFate) {
        self.counts = self.counts.with(fate);
        self.children = self.children.saturating_sub(u32::from(edge.spawned));
    }

    /// Edges in force whose upstream is not over and that hold the downstream as it stands.
    #[must_use]
    pub fn holding(&self, downstream: &Execution) -> u32 {
        let idle = if downstream.waits_for_children() { 0 } else { self.children };
        self.running().saturating_sub(idle)
    }

    /// Edges in force whose upstream is not over.
    #[must_use]
    pub fn running(&self) -> u32 {
        let settled = self.counts.total - self.counts.running();
        self.applied.saturating_sub(settled)
    }

    /// The decision, which stands from now on.
    pub fn decide(&mut self, state: EdgeGroupState, now: TimestampMs) {
        self.state = state;
        self.decided_at = Some(now);
    }

    /// Owes the siblings a cancellation, from now on.
    pub fn owe_cancellations(&mut self, reason: &str, siblings: Vec<ExecutionId>, now: TimestampMs) {
        let pending = !siblings.is_empty();
        self.sibling_cancel = Some(SiblingCancel { reason: reason.to_owned(), siblings, pending, due_at: now });
    }

    /// Whether siblings are still owed a cancellation.
    #[must_use]
    pub fn owes_cancellations(&self) -> bool {
        self.sibling_cancel.as_ref().is_some_and(|cancel| cancel.pending)
    }

    /// An edge in force does not belong to it any more.
    pub fn unstage(&mut self, edge: &Edge) {
        self.counts.total = self.counts.total.saturating_sub(1);
        self.applied = self.applied.saturating_sub(1);
        if edge.state == EdgeState::Satisfied {
            self.counts.succeeded = self.counts.succeeded.saturating_sub(1);
        }
        if edge.passes_data() {
            self.data_edges = self.data_edges.saturating_sub(1);
        }
        if edge.spawned && edge.state == EdgeState::Unsatisfied {
            self.children = self.children.saturating_sub(1);
        }
    }

    /// Forgets the siblings; why they were cancelled stays.
    pub fn drain(&mut self) {
        if let Some(cancel) = &mut self.sibling_cancel {
            cancel.siblings.clear();
            cancel.pending = false;
        }
    }
}

impl Stored for EdgeGroup {
    fn key(&self) -> Key {
        Key::edge_group(self.downstream, self.generation)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let generation = i64::from(self.generation);
        out.push(Entry::new(Index::GroupsInto(self.downstream), Position::new(generation, [])));
        let mut tie = self.downstream.to_bytes().to_vec();
        tie.extend_from_slice(&self.generation.to_be_bytes());
        out.push(Entry::new(Index::GroupsOf(self.home, self.flow), Position::by(tie.clone())));
        if let Some(cancel) = self.sibling_cancel.as_ref().filter(|cancel| cancel.pending) {
            out.push(Entry::new(Index::Due(DueKind::SiblingCancel), Position::at(cancel.due_at, tie)));
        }
    }
}

/// The dashboard row of a flow, derived from its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FlowProjection {
    pub home: Partition,
    pub flow: FlowId,
    pub total: u32,
    /// Members that could be read.
    pub sampled: u32,
    pub counts: BTreeMap<PublicState, u32>,
    pub derived_state: FlowState,
    pub projected_at: TimestampMs,
}

impl Stored for FlowProjection {
    fn key(&self) -> Key {
        Key::flow_projection(self.home, self.flow)
    }
}

/// A request to project a flow. One per flow and second, so a busy flow neither writes more nor starves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ProjectionMark {
    pub home: Partition,
    pub flow: FlowId,
    pub second: i64,
    /// The last change that asked, to tell whether another one came while the flow was looked at.
    pub cause: (Option<ExecutionId>, TimestampMs),
}

impl ProjectionMark {
    /// The mark for a change that happens now.
    #[must_use]
    pub const fn for_change(home: Partition, flow: FlowId, member: Option<ExecutionId>, now: TimestampMs) -> Self {
        Self { home, flow, second: now.0.div_euclid(1000) + 1, cause: (member, now) }
    }
}

impl Stored for ProjectionMark {
    fn key(&self) -> Key {
        Key::projection_mark(self.home, self.flow, self.second)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(
            Index::Due(DueKind::Projection),
            Position::new(self.second * 1000, *self.flow.uuid().as_bytes()),
        ));
    }
}

/// A member whose cancellation somebody else has taken care of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CancelAck {
    pub home: Partition,
    pub flow: FlowId,
    pub execution: ExecutionId,
}

impl Stored for CancelAck {
    fn key(&self) -> Key {
        Key::cancel_ack(self.home, self.flow, self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        out.push(Entry::new(Index::CancelAcksOf(self.home, self.flow), Position::by(self.execution.to_bytes())));
    }
}
