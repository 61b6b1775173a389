//! Bulk work goes on, a slice at a time.

use async_trait::async_trait;
use ff_core::partition::Partition;
use ff_core::{Result, TimestampMs};

use super::witness::changes;
use super::{gates, routes};
use crate::engine::Engine;
use crate::index::Position;
use crate::key::Key;
use crate::lifecycle::graph::SettleEdges;
use crate::ops::flows::cancel;
use crate::records::{Continuation, ContinuationWork, Stored};
use crate::store::{Op, Store, Tx};

/// What one slice came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is left.
    Done,
    /// The next slice begins after this position, at this time.
    More {
        /// Where the slice stopped.
        after: Option<Position>,
        /// When to go on.
        due_at: TimestampMs,
    },
}

/// Hands a continuation to those who know its work; each does one slice and keeps or drops the record.
pub(crate) async fn handle<S: Store>(engine: &Engine<S>, record: Continuation, now: TimestampMs) -> Result<bool> {
    match record.work {
        ContinuationWork::OpenRoute { .. } => routes::handle(engine, record, now).await,
        ContinuationWork::Breach { .. } | ContinuationWork::OpenBudget { .. } | ContinuationWork::OpenQuota { .. } => {
            gates::advance(engine, record).await
        }
        ContinuationWork::ResolveEdges { flow, upstream } => {
            let settle = SettleEdges { flow, upstream, continuation: Some(record.id) };
            changes(engine, record.key(), settle).await
        }
        ContinuationWork::CancelMembers { flow } => {
            let step = cancel::step(engine, &record, flow).await?;
            Keep { record, step }.write(engine).await
        }
    }
}

/// Writes down how far the work has come, unless somebody asked for it anew meanwhile.
pub(super) struct Keep {
    pub(super) record: Continuation,
    pub(super) step: Step,
}

impl Keep {
    /// Says whether anything was written.
    pub(super) async fn write<S: Store>(self, engine: &Engine<S>) -> Result<bool> {
        changes(engine, self.record.key(), self).await
    }
}

#[async_trait]
impl Op for Keep {
    type Out = ();

    fn home(&self) -> Partition {
        self.record.home
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let key = Key::continuation(self.record.home, self.record.id);
        if tx.get::<Continuation>(key.clone()).await?.as_ref() != Some(&self.record) {
            return Ok(());
        }
        match &self.step {
            Step::Done => tx.delete(key),
            Step::More { after, due_at } => {
                tx.put(Continuation { after: after.clone(), due_at: *due_at, ..self.record.clone() });
            }
        }
        Ok(())
    }
}
