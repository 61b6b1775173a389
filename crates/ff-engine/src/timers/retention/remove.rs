//! The transactions of a purge in the execution's own partition.

use async_trait::async_trait;
use ff_core::Result;
use ff_core::fault::{Fault, is_on};
use ff_core::ids::FlowId;
use ff_core::partition::Partition;

use super::{KEPT_MIN_MS, Rule, is_last_member};
use crate::index::{Bounds, Index};
use crate::key::Key;
use crate::records::{Attempt, Execution, Flow, Waitpoint};
use crate::store::{Op, Tx};

/// Marks the execution as going, if it may: over, kept long enough, and awaited by nobody.
pub(super) struct Begin {
    pub(super) rule: Rule,
}

/// Whether a purge has begun.
pub(super) enum Begun {
    Going(Box<Execution>),
    /// It is not due.
    Refused,
    /// Somebody waits for it.
    Awaited,
}

#[async_trait]
impl Op for Begin {
    type Out = Begun;

    fn home(&self) -> Partition {
        self.rule.home()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::execution(self.rule.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Begun> {
        let Some(mut execution) = self.rule.due(tx).await? else { return Ok(Begun::Refused) };
        if self.rule.is_awaited(tx, &execution).await? {
            return Ok(Begun::Awaited);
        }
        if !execution.purging {
            execution.begin_purge();
            tx.put(execution.clone());
        }
        Ok(Begun::Going(Box::new(execution)))
    }
}

/// Puts off the purge of an execution that somebody needs; says whether it did. It is kept a quarter longer each time, so that one that is
/// needed for long is seldom looked at, and does not stay much longer than it is needed.
pub(super) struct Keep {
    pub(super) rule: Rule,
}

#[async_trait]
impl Op for Keep {
    type Out = bool;

    fn home(&self) -> Partition {
        self.rule.home()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::execution(self.rule.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(mut execution) = self.rule.due(tx).await? else { return Ok(false) };
        let (now, Some(since)) = (tx.now(), execution.completed_at) else { return Ok(false) };
        if !self.rule.is_awaited(tx, &execution).await? {
            return Ok(false);
        }
        execution.keep_until(now.plus((now.since(since) / 4).max(KEPT_MIN_MS)));
        tx.put(execution);
        Ok(true)
    }
}

/// Drops some records of an execution that may go; says whether it still may.
pub(super) struct DropSlice {
    pub(super) rule: Rule,
    pub(super) keys: Vec<Key>,
    /// The records are the flow's; they go only while this is its last member.
    pub(super) with_flow: Option<FlowId>,
}

#[async_trait]
impl Op for DropSlice {
    type Out = bool;

    fn home(&self) -> Partition {
        self.rule.home()
    }

    fn prefetch(&self) -> Vec<Key> {
        let flow = self.with_flow.map(|flow| Key::flow(self.rule.home(), flow));
        std::iter::once(Key::execution(self.rule.id)).chain(flow).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        if self.rule.due(tx).await?.is_none() {
            return Ok(false);
        }
        if let Some(id) = self.with_flow {
            let flow = tx.get::<Flow>(Key::flow(self.rule.home(), id)).await?;
            if !flow.is_some_and(|flow| is_last_member(&flow)) {
                return Ok(false);
            }
        }
        for key in &self.keys {
            tx.delete(key.clone());
        }
        Ok(true)
    }
}

/// How far a removal got.
pub(super) enum Progress {
    /// A slice is gone, more is there.
    More,
    /// Everything is gone.
    Removed,
    /// It may not go any more.
    Refused,
    /// Somebody waits for it.
    Awaited,
}

/// Removes the execution with everything that is left of it.
pub(super) struct Remove {
    pub(super) rule: Rule,
    pub(super) slice: usize,
}

#[async_trait]
impl Op for Remove {
    type Out = Progress;

    fn home(&self) -> Partition {
        self.rule.home()
    }

    fn prefetch(&self) -> Vec<Key> {
        vec![Key::execution(self.rule.id)]
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Progress> {
        let Some(execution) = self.rule.due(tx).await? else { return Ok(Progress::Refused) };
        if self.rule.is_awaited(tx, &execution).await? {
            return Ok(Progress::Awaited);
        }
        let complete = self.attempts(tx).await? & self.waitpoints(tx).await? & self.rest(tx).await?;
        if !complete {
            return Ok(Progress::More);
        }
        if let Some(flow) = execution.flow_id
            && !self.leave_flow(tx, flow, &execution).await?
        {
            return Ok(Progress::More);
        }
        let id = self.rule.id;
        let own = [
            Key::execution(id),
            Key::definition(id),
            Key::payload(id),
            Key::outcome(id),
            Key::progress(id),
            Key::execution_tags(id),
            Key::grant(id),
            Key::signal_tally(id),
            Key::step_head(id),
        ];
        let kept = is_on(Fault::PurgeIncomplete).then(|| Key::payload(id));
        own.into_iter().filter(|key| Some(key) != kept.as_ref()).for_each(|key| tx.delete(key));
        Ok(Progress::Removed)
    }
}

impl Remove {
    /// Attempts with what they used, their streams and summaries.
    async fn attempts(&self, tx: &mut dyn Tx) -> Result<bool> {
        let id = self.rule.id;
        let found = tx.range_of::<Attempt>(Index::AttemptsOf(id), Bounds::first(self.slice)).await?;
        let complete = found.len() < self.slice;
        for attempt in found {
            let index = attempt.index;
            let own = [
                Key::attempt(id, index),
                Key::attempt_usage(id, index),
                Key::stream_head(id, index),
                Key::summary(id, index),
            ];
            own.into_iter().for_each(|key| tx.delete(key));
        }
        Ok(complete)
    }

    async fn waitpoints(&self, tx: &mut dyn Tx) -> Result<bool> {
        let index = Index::WaitpointsOf(self.rule.id);
        let found = tx.range_of::<Waitpoint>(index, Bounds::first(self.slice)).await?;
        let complete = found.len() < self.slice;
        for waitpoint in found {
            tx.delete(Key::waitpoint(waitpoint.home, waitpoint.id));
        }
        Ok(complete)
    }

    /// Suspension episodes, remembered answers and steps.
    async fn rest(&self, tx: &mut dyn Tx) -> Result<bool> {
        let mut complete = true;
        for index in [Index::SuspensionsOf(self.rule.id), Index::DedupsOf(self.rule.id), Index::StepsOf(self.rule.id)] {
            complete &= self.clear(tx, &index).await?;
        }
        Ok(complete)
    }

    async fn clear(&self, tx: &mut dyn Tx, index: &Index) -> Result<bool> {
        let found = tx.range(index, &Bounds::first(self.slice)).await?;
        let complete = found.len() < self.slice;
        for record in found {
            tx.delete(record.key());
        }
        Ok(complete)
    }

    /// The flow keeps counting the member as it ended; with its last member it goes itself. Says whether that is done.
    async fn leave_flow(&self, tx: &mut dyn Tx, id: FlowId, execution: &Execution) -> Result<bool> {
        let home = self.rule.home();
        let Some(mut flow) = tx.get::<Flow>(Key::flow(home, id)).await? else { return Ok(true) };
        tx.delete(Key::cancel_ack(home, id, self.rule.id));
        if !is_last_member(&flow) {
            *flow.purged.entry(execution.public_state()).or_insert(0) += 1;
            tx.put(flow);
            return Ok(true);
        }
        let complete = self.clear_graph(tx, id).await?;
        if complete {
            let own = [Key::flow(home, id), Key::flow_tags(home, id), Key::flow_projection(home, id)];
            own.into_iter().for_each(|key| tx.delete(key));
        }
        Ok(complete)
    }

    async fn clear_graph(&self, tx: &mut dyn Tx, flow: FlowId) -> Result<bool> {
        let home = self.rule.home();
        let mut complete = true;
        for index in [Index::EdgesOf(home, flow), Index::GroupsOf(home, flow), Index::CancelAcksOf(home, flow)] {
            complete &= self.clear(tx, &index).await?;
        }
        Ok(complete)
    }
}
