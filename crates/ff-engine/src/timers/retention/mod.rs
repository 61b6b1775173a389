//! A terminal execution has been kept long enough: it goes, with everything that belongs to it.
//!
//! What can be large (frames, signals, the edges of a flow whose last member goes) is dropped first, a slice per transaction; what
//! lives in other families is dropped next; the execution record goes last, so that a purge that was cut short is taken up again.

mod elsewhere;
mod remove;

use ff_core::ids::{AttemptIndex, ExecutionId, FlowId};
use ff_core::partition::Partition;
use ff_core::rules::retention::is_purge_due;
use ff_core::state::EdgeState;
use ff_core::{Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::records::{Edge, Execution, Flow, Waitpoint};
use crate::store::{Store, Tx};
use crate::verbs::{list_of, read_one};

use remove::{Check, DropSlice, Progress, Remove};

/// Outgoing edges looked at; a flow takes no more per submission.
const EDGES_MAX: usize = 10_000;

/// Purges an execution that came due by the deployment's retention or its own.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Execution, now: TimestampMs) -> Result<()> {
    purge(engine, record.id, engine.settings.retention_ms, now).await.map(drop)
}

/// Purges one execution if it may go; says whether it did.
pub(crate) async fn purge<S: Store>(
    engine: &Engine<S>,
    id: ExecutionId,
    retention_ms: u64,
    now: TimestampMs,
) -> Result<bool> {
    let rule = Rule { id, retention_ms, now };
    let Some(execution) = engine.run(Check { rule }).await? else { return Ok(false) };
    thin_out(engine, rule, &execution).await?;
    elsewhere::forget(engine, &execution).await?;
    loop {
        match engine.run(Remove { rule, slice: engine.settings.slice }).await? {
            Progress::More => {}
            Progress::Removed => return Ok(true),
            Progress::Kept => return Ok(false),
        }
    }
}

/// Which execution may go, and since when.
#[derive(Clone, Copy)]
struct Rule {
    id: ExecutionId,
    retention_ms: u64,
    now: TimestampMs,
}

impl Rule {
    const fn home(&self) -> Partition {
        self.id.partition()
    }

    /// The execution, if it is over and has been kept long enough.
    async fn due(&self, tx: &mut dyn Tx) -> Result<Option<Execution>> {
        let now = self.now.min(tx.now());
        let execution = tx.get::<Execution>(Key::execution(self.id)).await?;
        Ok(execution.filter(|execution| {
            let since = execution.completed_at.filter(|_| execution.is_terminal());
            since.is_some_and(|at| is_purge_due(at, self.retention_ms, execution.retention_ms, now))
        }))
    }

    /// Whether a member that is not over still waits for this one.
    async fn is_awaited(&self, tx: &mut dyn Tx, execution: &Execution) -> Result<bool> {
        let Some(flow) = execution.flow_id else { return Ok(false) };
        let index = Index::EdgesFrom(self.home(), flow, self.id);
        for edge in tx.range_of::<Edge>(index, Bounds::first(EDGES_MAX)).await? {
            if matches!(edge.state, EdgeState::Staged | EdgeState::Unsatisfied) {
                let downstream = tx.get::<Execution>(Key::execution(edge.downstream)).await?;
                if downstream.is_some_and(|downstream| !downstream.is_terminal()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Whether a flow has no member left but one.
fn is_last_member(flow: &Flow) -> bool {
    flow.purged.values().sum::<u32>() + 1 >= flow.node_count
}

/// Drops what can be large, slice by slice.
async fn thin_out<S: Store>(engine: &Engine<S>, rule: Rule, execution: &Execution) -> Result<()> {
    for attempt in 0..execution.attempt_count {
        drop_all(engine, rule, Index::FramesOf(rule.id, AttemptIndex(attempt)), None).await?;
    }
    let mut after = None;
    loop {
        let bounds = Bounds::first(engine.settings.slice).after(after);
        let page: Vec<Waitpoint> = list_of(&engine.store, Index::WaitpointsOf(rule.id), bounds).await?;
        let Some(last) = page.last() else { break };
        after = Some(Position::by(*last.id.uuid().as_bytes()));
        for waitpoint in page.iter().filter(|waitpoint| waitpoint.signal_count > 0) {
            drop_all(engine, rule, Index::SignalsOf(rule.home(), waitpoint.id), None).await?;
        }
    }
    let Some(id) = execution.flow_id else { return Ok(()) };
    let flow: Option<Flow> = read_one(&engine.store, Key::flow(rule.home(), id)).await?;
    if flow.is_some_and(|flow| is_last_member(&flow)) {
        let home = rule.home();
        for index in [Index::EdgesOf(home, id), Index::GroupsOf(home, id), Index::CancelAcksOf(home, id)] {
            drop_all(engine, rule, index, Some(id)).await?;
        }
    }
    Ok(())
}

async fn drop_all<S: Store>(engine: &Engine<S>, rule: Rule, index: Index, with_flow: Option<FlowId>) -> Result<()> {
    loop {
        let found = engine.store.list(std::slice::from_ref(&index), &Bounds::first(engine.settings.slice)).await?;
        if found.is_empty() {
            return Ok(());
        }
        let keys = found.into_iter().map(|listed| listed.record.key()).collect();
        if !engine.run(DropSlice { rule, keys, with_flow }).await? {
            return Ok(());
        }
    }
}
