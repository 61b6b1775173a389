//! Advancing a flow graph when one of its members ends.
//!
//! The end of a member settles its outgoing edges in the same commit; a downstream that is skipped thereby settles its own in turn. A
//! commit looks at [`SLICE`] edges at most, continuations do the rest.

mod groups;

use std::collections::VecDeque;

use async_trait::async_trait;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::{EdgeId, ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::rules::edge_groups::{EdgeFate, edge_fate};
use ff_core::state::{EdgeState, TerminalOutcome};
use ff_core::{EngineError, Result};
use uuid::Uuid;

use groups::Ends;
pub(crate) use groups::{current_group, live_upstreams, owes_cancellation, pass_data};

use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Continuation, ContinuationWork, Edge, Execution, Flow};
use crate::store::{Op, Tx};

/// Edges that one commit looks at.
pub(crate) const SLICE: usize = 200;

/// Settles the outgoing edges of a terminal execution, in this commit as far as one slice goes.
pub(crate) async fn advance(tx: &mut dyn Tx, execution: &Execution) -> Result<()> {
    match execution.flow_id {
        // Apart, so that whoever belongs to no flow does not carry room for all this.
        Some(flow) => Box::pin(settle(tx, execution, flow)).await,
        None => Ok(()),
    }
}

async fn settle(tx: &mut dyn Tx, execution: &Execution, flow: FlowId) -> Result<()> {
    let Some(mut cascade) = Cascade::load(tx, execution.id.partition(), flow).await? else { return Ok(()) };
    cascade.push(execution, None);
    cascade.run(tx).await
}

/// An execution whose outgoing edges are to be settled.
#[derive(Clone, Debug)]
struct Upstream {
    id: ExecutionId,
    outcome: TerminalOutcome,
    after: Option<Position>,
}

/// What follows, inside one commit, from the end of members of one flow.
#[derive(Debug)]
pub(crate) struct Cascade {
    flow: Flow,
    queue: VecDeque<Upstream>,
    edges_left: usize,
    /// Edges settled.
    pub(crate) resolved: u32,
    /// Downstreams that ended because of that.
    pub(crate) ended: u32,
    /// Executions some of whose edges were left to continuations.
    left: Vec<ExecutionId>,
}

impl Cascade {
    /// Takes the flow first: everything that advances a graph does, so that no two of them wait for each other.
    pub(crate) async fn load(tx: &mut dyn Tx, home: Partition, flow: FlowId) -> Result<Option<Self>> {
        Ok(tx.get::<Flow>(Key::flow(home, flow)).await?.map(Self::of))
    }

    /// A cascade in a flow that is loaded.
    pub(crate) const fn of(flow: Flow) -> Self {
        let queue = VecDeque::new();
        Self { flow, queue, edges_left: SLICE, resolved: 0, ended: 0, left: Vec::new() }
    }

    /// Asks for the outgoing edges of a terminal execution to be settled, those up to a position excepted.
    pub(crate) fn push(&mut self, execution: &Execution, after: Option<Position>) {
        self.push_upstream(execution.id, execution.state().terminal_outcome, after);
    }

    fn push_upstream(&mut self, id: ExecutionId, outcome: TerminalOutcome, after: Option<Position>) {
        self.queue.push_back(Upstream { id, outcome, after });
    }

    /// Settles what was asked for and whatever follows from it.
    pub(crate) async fn run(&mut self, tx: &mut dyn Tx) -> Result<()> {
        while let Some(mut upstream) = self.queue.pop_front() {
            if self.edges_left == 0 || !self.settle_outgoing(tx, &mut upstream).await? {
                self.left.push(upstream.id);
                let record = resolve_edges(&self.flow, upstream, tx);
                tx.put(record);
            }
        }
        Ok(())
    }

    /// Settles the edges that leave one execution; says whether it came to the last.
    async fn settle_outgoing(&mut self, tx: &mut dyn Tx, upstream: &mut Upstream) -> Result<bool> {
        let limit = self.edges_left;
        let index = Index::EdgesFrom(self.flow.home, self.flow.id, upstream.id);
        let bounds = Bounds::first(limit.saturating_add(1)).after(upstream.after.take());
        let page = tx.range_of::<Edge>(index, bounds).await?;
        let whole = page.len() <= limit;
        for edge in page.into_iter().take(limit) {
            self.edges_left -= 1;
            upstream.after = Some(edge.position());
            if edge.state == EdgeState::Unsatisfied {
                self.settle_or_leave(tx, edge, upstream.outcome).await?;
            }
        }
        Ok(whole)
    }

    /// A downstream whose records do not decode must not keep its upstream from ending; its edge stays as it is.
    async fn settle_or_leave(&mut self, tx: &mut dyn Tx, edge: Edge, outcome: TerminalOutcome) -> Result<()> {
        let Some(fate) = edge_fate(edge.kind, outcome) else { return Ok(()) };
        match Ends::load(tx, &edge, fate).await {
            Ok(ends) => self.apply(tx, ends, edge, fate).await,
            Err(EngineError::Validation { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Settles one edge in force, and its downstream when that decides the group.
    pub(crate) async fn settle(&mut self, tx: &mut dyn Tx, edge: Edge, fate: EdgeFate) -> Result<()> {
        let ends = Ends::load(tx, &edge, fate).await?;
        self.apply(tx, ends, edge, fate).await
    }

    async fn apply(&mut self, tx: &mut dyn Tx, ends: Ends, edge: Edge, fate: EdgeFate) -> Result<()> {
        if let Some(ended) = ends.settle(tx, &self.flow, edge, fate).await? {
            self.ended += 1;
            if !is_on(Fault::SkipNotCascaded) {
                self.push(&ended, None);
            }
        }
        self.resolved += 1;
        Ok(())
    }
}

/// The continuation that settles the outgoing edges of one execution. There is one per upstream, so repeating changes nothing.
fn resolve_edges(flow: &Flow, upstream: Upstream, tx: &dyn Tx) -> Continuation {
    Continuation {
        home: flow.home,
        id: continuation_id("resolve edges", upstream.id.uuid()),
        work: ContinuationWork::ResolveEdges { flow: flow.id, upstream: upstream.id },
        after: upstream.after,
        due_at: tx.now(),
    }
}

/// The id of the one continuation of a kind that a subject can have.
pub(crate) fn continuation_id(kind: &str, subject: Uuid) -> Uuid {
    let hash = |salt: u8| {
        let bytes: Vec<u8> = [&[salt], kind.as_bytes(), subject.as_bytes()].concat();
        ff_core::partition::fnv1a64(&bytes)
    };
    Uuid::from_u64_pair(hash(0), hash(1))
}

/// The edge from a spawned child to its parent. It outlives the child, and so tells that there was one.
pub(crate) const fn child_edge_id(child: ExecutionId) -> EdgeId {
    EdgeId::from_uuid(child.uuid())
}

/// A member of a flow; who only has the id of one that was purged is none.
pub(crate) async fn member(tx: &mut dyn Tx, flow: FlowId, id: ExecutionId) -> Result<Option<Execution>> {
    let found = tx.get::<Execution>(Key::execution(id)).await?;
    Ok(found.filter(|execution| execution.flow_id == Some(flow)))
}

/// What settling the edges of one execution came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) resolved: u32,
    pub(crate) ended: u32,
    /// The continuation that goes on with the edges of this execution.
    pub(crate) next: Option<Uuid>,
    /// Whether continuations go on with other executions.
    pub(crate) others_left: bool,
}

/// Settles one slice of the outgoing edges of a terminal execution, and leaves the rest to a continuation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettleEdges {
    pub(crate) flow: FlowId,
    pub(crate) upstream: ExecutionId,
    /// The continuation to go on with; from the first edge on when there is none.
    pub(crate) continuation: Option<Uuid>,
}

#[async_trait]
impl Op for SettleEdges {
    type Out = Settled;

    fn home(&self) -> Partition {
        self.upstream.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home(), self.flow), Key::execution(self.upstream)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Settled> {
        let cascade = Cascade::load(tx, self.home(), self.flow).await?;
        let upstream = member(tx, self.flow, self.upstream).await?;
        let mut after = None;
        if let Some(id) = self.continuation {
            let key = Key::continuation(self.home(), id);
            let Some(stored) = tx.get::<Continuation>(key.clone()).await? else { return Ok(Settled::default()) };
            after = stored.after;
            tx.delete(key);
        }
        let Some(mut cascade) = cascade else { return Ok(Settled::default()) };
        match upstream {
            Some(upstream) if upstream.is_terminal() => cascade.push(&upstream, after),
            Some(_) => return Ok(Settled::default()),
            // It ended and was purged; nobody knows how, so nobody may build upon its success.
            None => cascade.push_upstream(self.upstream, TerminalOutcome::Failed, after),
        }
        cascade.run(tx).await?;
        let more = cascade.left.contains(&self.upstream);
        Ok(Settled {
            resolved: cascade.resolved,
            ended: cascade.ended,
            next: more.then(|| continuation_id("resolve edges", self.upstream.uuid())),
            others_left: cascade.left.len() > usize::from(more),
        })
    }
}
