//! Advancing a flow graph when one of its members ends.
//!
//! The end of a member settles its outgoing edges in the same commit; a downstream that is skipped thereby settles its own in turn. A
//! commit looks at [`SLICE`] edges at most, continuations do the rest.

mod groups;

use std::collections::VecDeque;

use async_trait::async_trait;
use ff_core::ids::{ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::rules::edge_groups::{EdgeFate, edge_fate};
use ff_core::state::{EdgeState, TerminalOutcome};
use ff_core::{EngineError, Result};
use uuid::Uuid;

pub(crate) use groups::{current_group, pass_data, unsettled_upstreams};

use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Continuation, ContinuationWork, Edge, Execution, Flow};
use crate::store::{Op, Tx};

/// Edges that one commit looks at.
pub(crate) const SLICE: usize = 200;

/// Settles the outgoing edges of a terminal execution, in this commit as far as one slice goes.
pub(crate) async fn advance(tx: &mut dyn Tx, execution: &Execution) -> Result<()> {
    let Some(flow) = execution.flow_id else { return Ok(()) };
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
    /// Whether something was left to a continuation.
    pub(crate) unfinished: bool,
}

impl Cascade {
    /// Takes the flow first: everything that advances a graph does, so that no two of them wait for each other.
    pub(crate) async fn load(tx: &mut dyn Tx, home: Partition, flow: FlowId) -> Result<Option<Self>> {
        Ok(tx.get::<Flow>(Key::flow(home, flow)).await?.map(Self::of))
    }

    /// A cascade in a flow that is loaded.
    pub(crate) const fn of(flow: Flow) -> Self {
        let queue = VecDeque::new();
        Self { flow, queue, edges_left: SLICE, resolved: 0, ended: 0, unfinished: false }
    }

    /// Asks for the outgoing edges of a terminal execution to be settled, those up to a position excepted.
    pub(crate) fn push(&mut self, execution: &Execution, after: Option<Position>) {
        let outcome = execution.state().terminal_outcome;
        self.queue.push_back(Upstream { id: execution.id, outcome, after });
    }

    /// Settles what was asked for and whatever follows from it.
    pub(crate) async fn run(&mut self, tx: &mut dyn Tx) -> Result<()> {
        while let Some(mut upstream) = self.queue.pop_front() {
            if self.edges_left == 0 || !self.settle_outgoing(tx, &mut upstream).await? {
                self.unfinished = true;
                let record = resolve_edges(&self.flow, upstream.id, upstream.after, tx);
                tx.put(record);
            }
        }
        Ok(())
    }

    /// Settles the edges that leave one execution; says whether it came to the last.
    async fn settle_outgoing(&mut self, tx: &mut dyn Tx, upstream: &mut Upstream) -> Result<bool> {
        let limit = self.edges_left;
        let index = Index::EdgesFrom(self.flow.home, self.flow.id, upstream.id);
        let page =
            tx.range_of::<Edge>(index, Bounds::first(limit.saturating_add(1)).after(upstream.after.take())).await?;
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
        match self.settle(tx, edge, outcome).await {
            Ok(_) | Err(EngineError::Validation { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Settles one edge in force, and its downstream when that decides the group. Says what became of the edge.
    pub(crate) async fn settle(
        &mut self,
        tx: &mut dyn Tx,
        edge: Edge,
        outcome: TerminalOutcome,
    ) -> Result<Option<EdgeFate>> {
        let Some(fate) = edge_fate(edge.kind, outcome) else { return Ok(None) };
        if let Some(ended) = groups::settle(tx, &self.flow, edge, fate).await? {
            self.ended += 1;
            self.push(&ended, None);
        }
        self.resolved += 1;
        Ok(Some(fate))
    }
}

/// The continuation that settles the outgoing edges of one execution. There is one per upstream, so repeating changes nothing.
fn resolve_edges(flow: &Flow, upstream: ExecutionId, after: Option<Position>, tx: &dyn Tx) -> Continuation {
    Continuation {
        home: flow.home,
        id: resolve_edges_id(upstream),
        work: ContinuationWork::ResolveEdges { flow: flow.id, upstream },
        after,
        due_at: tx.now(),
    }
}

fn resolve_edges_id(upstream: ExecutionId) -> Uuid {
    continuation_id("resolve edges", upstream.uuid())
}

/// The id of the one continuation of a kind that a subject can have.
pub(crate) fn continuation_id(kind: &str, subject: Uuid) -> Uuid {
    let hash = |salt: u8| {
        let bytes: Vec<u8> = [&[salt], kind.as_bytes(), subject.as_bytes()].concat();
        ff_core::partition::fnv1a64(&bytes)
    };
    Uuid::from_u64_pair(hash(0), hash(1))
}

/// What settling the edges of one execution came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) resolved: u32,
    pub(crate) ended: u32,
    /// Whether a continuation goes on with the edges of this execution.
    pub(crate) more: bool,
    /// Whether continuations go on with anything.
    pub(crate) unfinished: bool,
}

/// Where settling begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At the first edge.
    First,
    /// Where the continuation stopped; nowhere when there is none.
    Continuation,
}

/// Settles one slice of the outgoing edges of a terminal execution, and keeps or drops the continuation for the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettleEdges {
    pub(crate) flow: FlowId,
    pub(crate) upstream: ExecutionId,
    pub(crate) begin: Begin,
}

#[async_trait]
impl Op for SettleEdges {
    type Out = Settled;

    fn home(&self) -> Partition {
        self.upstream.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![
            Key::flow(self.home(), self.flow),
            Key::continuation(self.home(), resolve_edges_id(self.upstream)),
            Key::execution(self.upstream),
        ]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Settled> {
        let cascade = Cascade::load(tx, self.home(), self.flow).await?;
        let key = Key::continuation(self.home(), resolve_edges_id(self.upstream));
        let stored = tx.get::<Continuation>(key.clone()).await?;
        let upstream = tx.get::<Execution>(Key::execution(self.upstream)).await?;
        let after = match (self.begin, &stored) {
            (Begin::First, _) => None,
            (Begin::Continuation, Some(stored)) => stored.after.clone(),
            (Begin::Continuation, None) => return Ok(Settled::default()),
        };
        if stored.is_some() {
            tx.delete(key.clone());
        }
        let (Some(mut cascade), Some(upstream)) = (cascade, upstream) else { return Ok(Settled::default()) };
        if !upstream.is_terminal() || upstream.flow_id != Some(self.flow) {
            return Ok(Settled::default());
        }
        cascade.push(&upstream, after);
        cascade.run(tx).await?;
        let more = tx.get::<Continuation>(key).await?.is_some();
        let Cascade { resolved, ended, unfinished, .. } = cascade;
        Ok(Settled { resolved, ended, more, unfinished })
    }
}
