//! A terminal execution has been kept long enough: it goes, with everything that belongs to it.
//!
//! The purge begins with a mark, so that nobody opens again what is no longer whole. What can be large (frames, signals, the edges of
//! a flow whose last member goes) is dropped first, a slice per transaction; what lives in other families is dropped next; the
//! execution record goes last, so that a purge that was cut short is taken up again.

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
use crate::timers::Answer;
use crate::verbs::{list_of, read_one};

use remove::{Begin, Begun, DropSlice, Keep, Progress, Remove};

/// Outgoing edges looked at; a flow takes no more per submission.
const EDGES_MAX: usize = 10_000;

/// The shortest time after which an execution that was needed is looked at again.
const KEPT_MIN_MS: u64 = 60 * 1000;

/// What became of a purge.
enum Purge {
    Done,
    /// It is not due, or not any more.
    Refused,
    /// It is due, and somebody still needs it.
    Awaited,
}

/// Purges an execution that came due by the deployment's retention or its own, or puts that off while somebody needs it.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: &Execution, now: TimestampMs) -> Result<Answer> {
    let rule = Rule { id: record.id, retention_ms: engine.settings.retention_ms, now };
    Ok(match try_purge(engine, rule).await? {
        Purge::Done => Answer::Changed,
        Purge::Refused => Answer::Unchanged,
        Purge::Awaited if engine.run(Keep { rule }).await? => Answer::Changed,
        Purge::Awaited => Answer::NotYet { look_at: now.plus(KEPT_MIN_MS) },
    })
}

/// Purges one execution if it may go; says whether it did.
pub(crate) async fn purge<S: Store>(
    engine: &Engine<S>,
    id: ExecutionId,
    retention_ms: u64,
    now: TimestampMs,
) -> Result<bool> {
    Ok(matches!(try_purge(engine, Rule { id, retention_ms, now }).await?, Purge::Done))
}

async fn try_purge<S: Store>(engine: &Engine<S>, rule: Rule) -> Result<Purge> {
    let execution = match engine.run(Begin { rule }).await? {
        Begun::Going(execution) => execution,
        Begun::Refused => return Ok(Purge::Refused),
        Begun::Awaited => return Ok(Purge::Awaited),
    };
    thin_out(engine, rule, &execution).await?;
    elsewhere::forget(engine, &execution).await?;
    loop {
        match engine.run(Remove { rule, slice: engine.settings.slice }).await? {
            Progress::More => {}
            Progress::Removed => return Ok(Purge::Done),
            Progress::Refused => return Ok(Purge::Refused),
            Progress::Awaited => return Ok(Purge::Awaited),
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

    /// The execution, if it is over and has been kept long enough, or was begun to be purged.
    async fn due(&self, tx: &mut dyn Tx) -> Result<Option<Execution>> {
        let now = self.now.min(tx.now());
        let execution = tx.get::<Execution>(Key::execution(self.id)).await?;
        Ok(execution.filter(|execution| {
            let since = execution.completed_at.filter(|_| execution.is_terminal());
            let due = |at| execution.purging || is_purge_due(at, self.retention_ms, execution.retention_ms, now);
            since.is_some_and(due)
        }))
    }

    /// Whether a member that is not over still waits for this one, or spawned it and may ask how it ended.
    async fn is_awaited(&self, tx: &mut dyn Tx, execution: &Execution) -> Result<bool> {
        let Some(flow) = execution.flow_id else { return Ok(false) };
        let index = Index::EdgesFrom(self.home(), flow, self.id);
        for edge in tx.range_of::<Edge>(index, Bounds::first(EDGES_MAX)).await? {
            let open = matches!(edge.state, EdgeState::Staged | EdgeState::Unsatisfied);
            // Whoever is replayed after a purge began asks for children of its new life.
            if open || (edge.spawned && !execution.purging) {
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
    drop_all(engine, rule, Index::StepsOf(rule.id), None).await?;
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
        let found = engine.store.keys(&index, &Bounds::first(engine.settings.slice)).await?;
        if found.is_empty() {
            return Ok(());
        }
        let keys = found.into_iter().map(|(_, key)| key).collect();
        if !engine.run(DropSlice { rule, keys, with_flow }).await? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ff_core::EngineError;
    use ff_core::backend::claims::ClaimPolicy;
    use ff_core::backend::ingress::{CreateExecutionArgs, ReplayExecutionArgs};
    use ff_core::backend::{Attempts, Claims, Ingress};
    use ff_core::capability::CapabilitySet;
    use ff_core::error::Entity;
    use ff_core::ids::LaneId;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::engine::Settings;
    use crate::memory::MemoryStore;

    const KEPT_MS: u64 = 60_000;

    /// An execution that is over and was tried twice, on an engine that purges in the smallest slices.
    async fn over_after_two_attempts(clock: &ManualClock) -> Result<(Engine<MemoryStore>, ExecutionId)> {
        let settings = Settings { slice: 1, retention_ms: KEPT_MS, ..Settings::default() };
        let engine = Engine::open(MemoryStore::new(Arc::new(clock.clone())), settings).await?;
        let lane = LaneId::new("default")?;
        let id = ExecutionId::new(0, uuid::Uuid::from_u128(1));
        engine.create_execution(CreateExecutionArgs::new(id, "acme".parse()?, lane.clone(), "task")).await?;
        for attempt in 0..2 {
            if attempt > 0 {
                engine.replay_execution(replay_of(id)).await?;
            }
            let policy = ClaimPolicy::new("w".parse()?, "w-1".parse()?, 30_000);
            let handle = engine.claim(&lane, &CapabilitySet::default(), policy).await?.expect("something to claim");
            engine.complete(&handle, None).await?;
        }
        Ok((engine, id))
    }

    fn replay_of(execution_id: ExecutionId) -> ReplayExecutionArgs {
        ReplayExecutionArgs { execution_id, reason: "again".to_owned(), requested_by: "ops".to_owned() }
    }

    #[tokio::test]
    async fn a_purge_that_was_cut_short_leaves_nothing_to_replay() {
        let clock = ManualClock::at(TimestampMs(1_000));
        let (engine, id) = over_after_two_attempts(&clock).await.unwrap();
        clock.advance(KEPT_MS);
        let rule = Rule { id, retention_ms: KEPT_MS, now: clock.now() };
        assert!(matches!(engine.run(Begin { rule }).await.unwrap(), Begun::Going(_)));
        assert!(matches!(engine.run(Remove { rule, slice: 1 }).await.unwrap(), Progress::More));

        let replayed = engine.replay_execution(replay_of(id)).await;

        assert!(matches!(replayed, Err(EngineError::NotFound { entity: Entity::Execution })), "{replayed:?}");
        while engine.run_due(clock.now(), 10).await.unwrap().handled > 0 {}
        assert_eq!(read_one::<Execution, _>(&engine.store, Key::execution(id)).await.unwrap(), None);
    }
}
