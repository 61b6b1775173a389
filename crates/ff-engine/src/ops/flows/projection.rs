//! The summary of a flow, derived from its members.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::ids::FlowId;
use ff_core::partition::Partition;
use ff_core::rules::graph::derived_flow_state;
use ff_core::state::PublicState;
use ff_core::{EngineError, Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Flow, FlowProjection, ProjectionMark, Record, Stored};
use crate::store::{Op, Store, Tx};
use crate::timers::witness::changes;
use crate::verbs::read_one;

/// Members read at once.
const PAGE: usize = 500;

/// Aggregates all members and writes the summary; `false` when there is nothing to show.
pub(super) async fn project<S: Store>(engine: &Engine<S>, flow: FlowId) -> Result<bool> {
    let write = look(engine, flow, None).await?;
    engine.run(write).await
}

/// The same, because a mark asked for it; says whether the mark was there to be answered.
pub(crate) async fn answer<S: Store>(engine: &Engine<S>, mark: ProjectionMark) -> Result<bool> {
    let key = mark.key();
    let write = look(engine, mark.flow, Some(mark)).await?;
    changes(engine, key, write).await
}

async fn look<S: Store>(engine: &Engine<S>, flow: FlowId, mark: Option<ProjectionMark>) -> Result<WriteProjection> {
    let home = engine.flow_home(flow);
    let began_at = engine.store.now().await?;
    let mut summary = Summary::default();
    if let Some(flow) = read_one::<Flow, S>(&engine.store, Key::flow(home, flow)).await? {
        summary.add_purged(&flow);
        summary.add_members(engine, &flow).await?;
    }
    Ok(WriteProjection { home, flow, summary, began_at, mark })
}

#[derive(Clone, Debug, Default)]
struct Summary {
    total: u32,
    sampled: u32,
    counts: BTreeMap<PublicState, u32>,
}

impl Summary {
    fn add(&mut self, state: PublicState, members: u32) {
        self.total += members;
        self.sampled += members;
        *self.counts.entry(state).or_default() += members;
    }

    fn add_purged(&mut self, flow: &Flow) {
        for (state, members) in &flow.purged {
            self.add(*state, *members);
        }
    }

    async fn add_members<S: Store>(&mut self, engine: &Engine<S>, flow: &Flow) -> Result<()> {
        let index = Index::MembersOf(flow.home, flow.id);
        let mut after = None;
        loop {
            let page = engine.store.keys(&index, &Bounds::first(PAGE).after(after)).await?;
            let whole = page.len() < PAGE;
            after = page.last().map(|(position, _)| position.clone());
            let keys: Vec<Key> = page.into_iter().map(|(_, key)| key).collect();
            self.add_page(engine, &keys).await?;
            if whole {
                return Ok(());
            }
        }
    }

    /// A member that does not decode counts in the total alone; the others of its page are then read one by one.
    async fn add_page<S: Store>(&mut self, engine: &Engine<S>, keys: &[Key]) -> Result<()> {
        match engine.store.read(keys).await {
            Ok(members) => members.into_iter().for_each(|member| self.add_member(member)),
            Err(EngineError::Validation { .. }) => {
                for key in keys {
                    match engine.store.read(std::slice::from_ref(key)).await {
                        Ok(members) => members.into_iter().for_each(|member| self.add_member(member)),
                        Err(EngineError::Validation { .. }) => self.total += 1,
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn add_member(&mut self, member: Option<Record>) {
        if let Some(Record::Execution(member)) = member {
            self.add(member.public_state(), 1);
        }
    }
}

struct WriteProjection {
    home: Partition,
    flow: FlowId,
    summary: Summary,
    /// When the members were looked at: a later look is not overwritten by an earlier one.
    began_at: TimestampMs,
    mark: Option<ProjectionMark>,
}

impl WriteProjection {
    /// A change that came while the members were looked at keeps its mark, and the flow is looked at again.
    async fn answer_mark(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(mark) = &self.mark else { return Ok(()) };
        let key = Key::projection_mark(self.home, self.flow, mark.second);
        if tx.get::<ProjectionMark>(key.clone()).await?.as_ref() == Some(mark) {
            tx.delete(key);
        }
        Ok(())
    }
}

#[async_trait]
impl Op for WriteProjection {
    type Out = bool;

    fn home(&self) -> Partition {
        self.home
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::flow(self.home, self.flow), Key::flow_projection(self.home, self.flow)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        self.answer_mark(tx).await?;
        let flow = tx.get::<Flow>(Key::flow(self.home, self.flow)).await?;
        let stored = tx.get::<FlowProjection>(Key::flow_projection(self.home, self.flow)).await?;
        if flow.is_none() || self.summary.total == 0 {
            return Ok(false);
        }
        if stored.is_some_and(|stored| stored.projected_at > self.began_at) {
            return Ok(true);
        }
        tx.put(FlowProjection {
            home: self.home,
            flow: self.flow,
            total: self.summary.total,
            sampled: self.summary.sampled,
            counts: self.summary.counts.clone(),
            derived_state: derived_flow_state(&self.summary.counts),
            projected_at: self.began_at,
        });
        Ok(true)
    }
}
