//! Settling edges on request; the end of a member settles them by itself.

use async_trait::async_trait;
use ff_core::backend::dependencies::{CascadeOutcome, ResolveDependencyArgs, ResolveDependencyOutcome};
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::rules::edge_groups::edge_fate;
use ff_core::state::{EdgeState, TerminalOutcome};
use ff_core::{EngineError, Result};

use super::groups::invalid_dependency;
use crate::engine::Engine;
use crate::key::Key;
use crate::lifecycle::graph::{Cascade, SettleEdges};
use crate::records::{Edge, Execution};
use crate::store::{Op, Store, Tx};
use crate::verbs::read_one;

/// Slices that one call settles; what is left comes due as a continuation.
const SLICES_MAX: usize = 64;

pub(super) async fn resolve<S: Store>(
    engine: &Engine<S>,
    args: ResolveDependencyArgs,
) -> Result<ResolveDependencyOutcome> {
    if args.upstream_outcome == TerminalOutcome::None {
        return Err(EngineError::invalid("upstream_outcome: an upstream that is not over settles nothing"));
    }
    engine.run(Resolve { home: engine.flow_home(args.flow_id), args }).await
}

struct Resolve {
    home: Partition,
    args: ResolveDependencyArgs,
}

#[async_trait]
impl Op for Resolve {
    type Out = ResolveDependencyOutcome;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home, self.args.flow_id), Key::edge(self.home, self.args.flow_id, self.args.edge_id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<ResolveDependencyOutcome> {
        let args = &self.args;
        let cascade = Cascade::load(tx, self.home, args.flow_id).await?;
        let edge = tx.get::<Edge>(Key::edge(self.home, args.flow_id, args.edge_id)).await?;
        let same_ends = |edge: &Edge| {
            edge.upstream == args.upstream_execution_id && edge.downstream == args.downstream_execution_id
        };
        let (Some(mut cascade), Some(edge)) = (cascade, edge.filter(same_ends)) else {
            return Err(invalid_dependency("the edge is unknown or its ends differ"));
        };
        match edge.state {
            EdgeState::Staged => return Err(invalid_dependency("the edge is not in force")),
            EdgeState::Satisfied | EdgeState::Impossible => return Ok(ResolveDependencyOutcome::AlreadyResolved),
            EdgeState::Unsatisfied => {}
        }
        let Some(fate) = edge_fate(edge.kind, self.outcome(tx).await?) else {
            return Err(EngineError::invalid("upstream_outcome: the upstream is not over"));
        };
        cascade.settle(tx, edge, fate).await?;
        cascade.run(tx).await?;
        Ok(fate.outcome())
    }
}

impl Resolve {
    /// The stored outcome; what the caller says counts only for an upstream that is gone.
    async fn outcome(&self, tx: &mut dyn Tx) -> Result<TerminalOutcome> {
        let upstream = tx.get::<Execution>(Key::execution(self.args.upstream_execution_id)).await?;
        Ok(upstream.map_or(self.args.upstream_outcome, |upstream| upstream.state().terminal_outcome))
    }
}

pub(super) async fn cascade<S: Store>(engine: &Engine<S>, id: ExecutionId) -> Result<CascadeOutcome> {
    let mut outcome = CascadeOutcome { synchronous: true, ..CascadeOutcome::default() };
    let execution: Option<Execution> = read_one(&engine.store, Key::execution(id)).await?;
    let Some(flow) = execution.and_then(|execution| execution.flow_id) else { return Ok(outcome) };
    let mut continuation = None;
    for _ in 0..SLICES_MAX {
        let settled = engine.run(SettleEdges { flow, upstream: id, continuation }).await?;
        outcome.resolved += settled.resolved;
        outcome.cascaded_children += settled.ended;
        outcome.synchronous &= !settled.others_left;
        continuation = settled.next;
        if continuation.is_none() {
            return Ok(outcome);
        }
    }
    outcome.synchronous = false;
    Ok(outcome)
}
