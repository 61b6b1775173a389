//! Work that comes due: one file per kind, and the deterministic pass over all of them.

mod admission_expiry;
mod attempt_timeout;
mod budget_reset;
pub(crate) mod continuation;
mod deadline;
mod dedup_expiry;
pub(crate) mod delay;
pub(crate) mod gates;
mod grant_expiry;
mod lease_expiry;
mod poison;
mod projection;
mod readmission;
mod reclaim_backoff;
pub(crate) mod retention;
pub(crate) mod routes;
pub(crate) mod settlement;
mod sibling_cancel;
mod stream_expiry;
mod suspension_timeout;
mod waitpoint_expiry;
mod worker_expiry;

use std::sync::Arc;

use ff_core::error::ValidationKind;
use ff_core::{EngineError, Result, TimestampMs};

pub(crate) use poison::Poison;

use crate::engine::Engine;
use crate::index::{Bounds, DueKind, Index, Listed, Position};
use crate::key::Key;
use crate::records::Record;
use crate::store::Store;

/// Entries listed at once; more than can share one position.
const PAGE: usize = 128;

/// Entries one pass may look at beyond those it may handle, so that items that cannot be handled hide nothing and cost little.
const LOOKED_AT_MAX: usize = 4096;

/// Events one pass may drop.
const EVENTS_TRIMMED_MAX: usize = 1000;

/// What one pass over due work did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueReport {
    /// Items that changed: the record is another one now, or gone.
    pub handled: usize,
    /// Items that failed, or that are due as before although nothing failed; they will be tried again.
    pub failed: usize,
}

impl<S: Store> Engine<S> {
    /// Handles work that is due at `now` (or at the store's time, if that is earlier), earliest first, at most `limit` items.
    ///
    /// Only items that changed count as handled, so a caller may repeat this until nothing was handled. An item that fails does not
    /// keep later ones from being handled, and is left alone for some passes after it failed several times in a row.
    ///
    /// # Errors
    /// Only when due work cannot be listed; a failing item is counted, not propagated.
    pub async fn run_due(&self, now: TimestampMs, limit: usize) -> Result<DueReport> {
        let now = now.min(self.store.now().await?);
        self.poison.begin_pass();
        let mut pass = Pass { engine: self, now, limit, report: DueReport::default(), looked_at: 0 };
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
        let first = self.store.list(&DueKind::ALL.map(Index::Due), &Bounds::first(1)).await?;
        let finished = self.store.list(&[Index::Terminal], &Bounds::first(1)).await?;
        let at = |listed: &Listed| TimestampMs(listed.position.major);
        let purge = finished.first().map(|listed| at(listed).plus(self.settings.retention_ms));
        Ok(first.first().map(at).into_iter().chain(purge).min())
    }
}

/// The time `ms` before `now`.
fn earlier(now: TimestampMs, ms: u64) -> TimestampMs {
    TimestampMs(now.0.saturating_sub_unsigned(ms))
}

/// One pass over due work.
struct Pass<'e, S> {
    engine: &'e Engine<S>,
    now: TimestampMs,
    limit: usize,
    report: DueReport,
    looked_at: usize,
}

impl<S: Store> Pass<'_, S> {
    const fn is_over(&self) -> bool {
        self.report.handled + self.report.failed >= self.limit || self.looked_at >= self.limit + LOOKED_AT_MAX
    }

    /// Handles what stands in some indexes up to a time, page by page.
    async fn over(&mut self, indexes: &[Index], until: TimestampMs) -> Result<()> {
        let mut after = None;
        while !self.is_over() {
            let bounds = Bounds::first(PAGE).after(after).until(Position::end_of(until.0));
            let page = whole_positions(self.engine.store.list(indexes, &bounds).await?);
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.position.clone());
            for listed in page {
                if self.is_over() {
                    return Ok(());
                }
                self.one(listed).await;
            }
        }
        Ok(())
    }

    async fn one(&mut self, listed: Listed) {
        self.looked_at += 1;
        let kind = match listed.index {
            Index::Due(kind) => kind,
            _ => DueKind::Retention,
        };
        let key = listed.record.key();
        if self.engine.poison.skips(kind, &key) {
            return;
        }
        let handled = match dispatch(self.engine, kind, listed.record.clone(), self.now).await {
            Ok(()) => self.has_changed(&key, &listed.record).await,
            Err(_) => false,
        };
        if handled {
            self.report.handled += 1;
            self.engine.poison.cleared(kind, &key);
        } else {
            self.report.failed += 1;
            self.engine.poison.failed(kind, key);
        }
    }

    async fn has_changed(&self, key: &Key, before: &Record) -> bool {
        match self.engine.store.read(std::slice::from_ref(key)).await {
            Ok(found) => found.first().and_then(Option::as_ref) != Some(before),
            Err(_) => false,
        }
    }
}

/// Cuts a full page so that it does not end between entries of one position: paging on skips all of them.
fn whole_positions(mut page: Vec<Listed>) -> Vec<Listed> {
    if page.len() == PAGE
        && let Some(last) = page.last().map(|listed| listed.position.clone())
        && page.first().is_some_and(|first| first.position != last)
    {
        page.retain(|listed| listed.position != last);
    }
    page
}

/// Hands a due record to the handler of its kind.
async fn dispatch<S: Store>(engine: &Engine<S>, kind: DueKind, record: Record, now: TimestampMs) -> Result<()> {
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
        (DueKind::Retention, Record::Execution(it)) => retention::handle(engine, Arc::unwrap_or_clone(it), now).await,
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
        (kind, other) => Err(EngineError::validation(
            ValidationKind::Corruption,
            format!("{:?}: record: {} cannot be due for {kind:?}", other.key(), other.kind()),
        )),
    }
}
