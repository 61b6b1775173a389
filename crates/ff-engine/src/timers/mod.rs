//! Work that comes due: one file per kind, and the deterministic pass over all of them.

mod admission_expiry;
mod attempt_timeout;
mod budget_reset;
mod class_expiry;
pub(crate) mod continuation;
mod deadline;
mod dedup_expiry;
pub(crate) mod delay;
pub(crate) mod gates;
mod grant_expiry;
pub(crate) mod guard;
mod intake;
mod lease_expiry;
pub(crate) mod pass;
mod poison;
mod projection;
mod readmission;
mod reclaim_backoff;
pub(crate) mod retention;
pub(crate) mod round;
pub(crate) mod routes;
pub(crate) mod settlement;
mod sibling_cancel;
mod stream_expiry;
mod suspension_timeout;
mod waitpoint_expiry;
pub(crate) mod witness;
mod worker_expiry;

use std::sync::Arc;

use ff_core::error::ValidationKind;
use ff_core::{EngineError, Result, TimestampMs};

use pass::{Manner, Pass};
pub use poison::FailingItem;
pub(crate) use poison::Poison;

use crate::engine::Engine;
use crate::index::{DueKind, Index};
use crate::records::Record;
use crate::store::Store;

/// Events one pass may drop.
const EVENTS_TRIMMED_MAX: usize = 1000;

/// What one pass over due work did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueReport {
    /// Items that a commit of this pass changed: the record is another one now, or gone.
    pub handled: usize,
    /// Items that somebody else changed before this pass came to them.
    pub elsewhere: usize,
    /// Items that failed, or that are due as before although nothing failed; they will be tried again.
    pub failed: usize,
}

impl<S: Store> Engine<S> {
    /// Handles work that is due at `now` (or at the store's time, if that is earlier), earliest first, until `limit` items changed.
    ///
    /// Only items that this pass changed count as handled, so a caller may repeat this until nothing was handled. An item that fails does
    /// not keep later ones from being handled, and is left alone for some passes after it failed several times in a row.
    ///
    /// # Errors
    /// Only when due work cannot be listed; a failing item is counted, not propagated.
    pub async fn run_due(&self, now: TimestampMs, limit: usize) -> Result<DueReport> {
        let now = now.min(self.store.now().await?);
        self.poison.begin_pass();
        let mut pass = Pass::new(self, now, limit, &Manner::ORDERLY);
        pass.over(&DueKind::ALL.map(Index::Due), now).await?;
        pass.over(&[Index::Terminal], earlier(now, self.settings.retention_ms)).await?;
        let trimmed = self.store.trim_events(earlier(now, self.settings.event_retention_ms), EVENTS_TRIMMED_MAX).await;
        pass.report.failed += usize::from(trimmed.is_err());
        Ok(pass.report)
    }

    /// When the next piece of work comes due, if any waits.
    ///
    /// # Errors
    /// When due work cannot be listed.
    pub async fn next_due(&self) -> Result<Option<TimestampMs>> {
        let first = first_after(self, &DueKind::ALL.map(Index::Due), None).await?;
        let finished = first_after(self, &[Index::Terminal], None).await?;
        let purge = finished.map(|at| at.plus(self.settings.retention_ms));
        Ok(first.into_iter().chain(purge).min())
    }
}

/// When the first entry of some indexes after a time is due.
pub(crate) async fn first_after<S: Store>(
    engine: &Engine<S>,
    indexes: &[Index],
    after: Option<TimestampMs>,
) -> Result<Option<TimestampMs>> {
    Ok(engine.store.lowest(indexes, after.map(|at| at.0)).await?.map(TimestampMs))
}

/// The time `ms` before `now`.
pub(crate) fn earlier(now: TimestampMs, ms: u64) -> TimestampMs {
    TimestampMs(now.0.saturating_sub_unsigned(ms))
}

/// What a handler says of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A commit of ours changed it.
    Changed,
    /// Nothing of ours did.
    Unchanged,
    /// It is due and must wait for something else, which is no failure.
    NotYet {
        /// When to look again.
        look_at: TimestampMs,
    },
}

impl From<bool> for Answer {
    fn from(changed: bool) -> Self {
        if changed { Self::Changed } else { Self::Unchanged }
    }
}

/// Hands a due record to the handler of its kind.
async fn dispatch<S: Store>(engine: &Engine<S>, kind: DueKind, record: Record, now: TimestampMs) -> Result<Answer> {
    match (kind, record) {
        (DueKind::Retention, Record::Execution(it)) => retention::handle(engine, &it, now).await,
        (kind, record) => dispatch_simple(engine, kind, record, now).await.map(Answer::from),
    }
}

/// The same for kinds that are never told to wait; says whether a commit of ours changed the record.
async fn dispatch_simple<S: Store>(
    engine: &Engine<S>,
    kind: DueKind,
    record: Record,
    now: TimestampMs,
) -> Result<bool> {
    match (kind, record) {
        (DueKind::LeaseExpiry, Record::Execution(it)) => {
            lease_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::ReclaimBackoff, Record::Execution(it)) => {
            reclaim_backoff::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::Delay, Record::Execution(it)) => delay::handle(engine, Arc::unwrap_or_clone(it), now).await,
        (DueKind::Readmission, Record::Execution(it)) => {
            readmission::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::AttemptTimeout, Record::Execution(it)) => {
            attempt_timeout::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::Deadline, Record::Execution(it)) => deadline::handle(engine, Arc::unwrap_or_clone(it), now).await,
        (DueKind::SuspensionTimeout, Record::Execution(it)) => {
            suspension_timeout::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::WaitpointExpiry, Record::Waitpoint(it)) => {
            waitpoint_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::GrantExpiry, Record::Grant(it)) => grant_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await,
        (DueKind::AdmissionExpiry, Record::Admission(it)) => {
            admission_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::Settlement, Record::Settlement(it)) => {
            settlement::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::Continuation, Record::Continuation(it)) => {
            continuation::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::SiblingCancel, Record::EdgeGroup(it)) => {
            sibling_cancel::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::Projection, Record::ProjectionMark(it)) => {
            projection::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::BudgetReset, Record::Budget(it)) => budget_reset::handle(engine, Arc::unwrap_or_clone(it), now).await,
        (DueKind::WorkerExpiry, Record::Worker(it)) => {
            worker_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::StreamExpiry, Record::StreamHead(it)) => {
            stream_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::DedupExpiry, Record::Dedup(it)) => dedup_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await,
        (DueKind::ClassExpiry, Record::LaneClass(it)) => {
            class_expiry::handle(engine, Arc::unwrap_or_clone(it), now).await
        }
        (DueKind::Intake, Record::Intake(it)) => intake::handle(engine, Arc::unwrap_or_clone(it), now).await,
        (kind, other) => Err(EngineError::validation(
            ValidationKind::Corruption,
            format!("{:?}: record: {} cannot be due for {kind:?}", other.key(), other.kind()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use ff_core::backend::Ingress;
    use ff_core::backend::ingress::CreateExecutionArgs;
    use ff_core::ids::{ExecutionId, LaneId, Namespace};
    use uuid::Uuid;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Settings;
    use crate::key::Key;
    use crate::memory::MemoryStore;
    use crate::verbs::read_one;

    const START: TimestampMs = TimestampMs(1_000);

    async fn delayed(engine: &Engine<MemoryStore>, ms: u64) -> ExecutionId {
        let id = ExecutionId::new(0, Uuid::from_u128(u128::from(ms)));
        let (namespace, lane) = (Namespace::new("acme").unwrap(), LaneId::new("default").unwrap());
        let args = CreateExecutionArgs::new(id, namespace, lane, "task");
        engine.create_execution(CreateExecutionArgs { delay_until: Some(START.plus(ms)), ..args }).await.unwrap();
        id
    }

    #[tokio::test]
    async fn items_that_cannot_be_handled_starve_no_other() {
        let clock = ManualClock::at(START);
        let engine = Engine::open(MemoryStore::new(Arc::new(clock.clone())), Settings::default()).await.unwrap();
        for ms in 1..=20 {
            let id = delayed(&engine, ms).await;
            engine.store().damage(Key::execution(id));
        }
        let sound = delayed(&engine, 21).await;
        clock.advance(100);
        let report = engine.run_due(START.plus(100), 1).await.unwrap();
        assert_eq!(report, DueReport { handled: 1, elsewhere: 0, failed: 20 });
        let execution: crate::records::Execution =
            read_one(&engine.store, Key::execution(sound)).await.unwrap().unwrap();
        assert!(execution.is_eligible());
    }

    #[tokio::test]
    async fn a_round_is_continued_where_its_last_pass_stopped() {
        let clock = ManualClock::at(START);
        let engine = Engine::open(MemoryStore::new(Arc::new(clock.clone())), Settings::default()).await.unwrap();
        for ms in 1..=4_200 {
            let id = delayed(&engine, ms).await;
            engine.store().damage(Key::execution(id));
        }
        clock.advance(5_000);
        let indexes = DueKind::ALL.map(Index::Due);
        let mut ended = Vec::new();
        for ms in [4_998, 4_999, 5_000] {
            let now = START.plus(ms);
            let mut pass = Pass::new(&engine, now, 1, &Manner::ORDERLY);
            ended.push(pass.over(&indexes, now).await.unwrap().map(|round| (round.began_at, pass.report.failed)));
        }
        assert_eq!(ended, [None, Some((START.plus(4_998), 103)), None]);
    }
}
