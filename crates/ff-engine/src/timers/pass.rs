//! One pass over due work: page by page, every item apart from the others.

use std::time::Duration;

use ff_core::Result;
use ff_core::backend::layer::BoxFuture;
use ff_core::{EngineError, TimestampMs};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use super::guard::guarded;
use super::round::Round;
use super::{Answer, DueReport, dispatch};
use crate::engine::Engine;
use crate::index::{Bounds, DueKind, Index, Position};
use crate::key::Key;
use crate::records::Record;
use crate::service::meters;
use crate::store::Store;
use crate::verbs::{Found, list_all};

/// Entries listed at once; more than can share one position.
const PAGE: usize = 256;

/// Entries one pass may look at beyond those it may handle, so that items that cannot be handled hide nothing and cost little.
const LOOKED_AT_MAX: usize = 4096;

/// Items of a page that others may have done before it is listed anew; more by a quarter of those that they have not.
const MISSES_MIN: usize = 4;

/// How long an item may take where others wait for their turn; what takes several commits goes on from there with its next try.
const ITEM_MAX: Duration = Duration::from_secs(30);

/// How a pass goes about its work.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// Items handled at once.
    pub(crate) concurrency: usize,
    /// Whether others do the same work: items are taken in any order, those that others are likely to do are left to them for a moment, and
    /// failing ones wait for a time, not for a number of passes. An item that panics or does not end is a failing one; a pass that is nobody
    /// else's business shows the panic to its caller.
    pub(crate) is_shared: bool,
    /// Ends the pass after the items in hand.
    pub(crate) stopping: Option<watch::Receiver<bool>>,
}

impl Manner {
    /// One after another, in order: the same history does the same again.
    pub(crate) const ORDERLY: Self = Self { concurrency: 1, is_shared: false, stopping: None };

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| *stopping.borrow())
    }
}

/// What became of an item.
enum Outcome {
    Handled {
        late_ms: u64,
    },
    Elsewhere,
    Failed,
    /// It failed before, or is to wait, and is left alone.
    Skipped,
    /// Whoever left it is likely to do it; it is looked at again then.
    TooYoung {
        look_at: TimestampMs,
    },
}

/// One pass over due work.
pub(crate) struct Pass<'e, S> {
    hands: Hands<'e, S>,
    manner: &'e Manner,
    limit: usize,
    pub(crate) report: DueReport,
    looked_at: usize,
    look_at: Option<TimestampMs>,
    /// How late the latest item was.
    pub(crate) late_ms: u64,
}

impl<'e, S: Store> Pass<'e, S> {
    pub(crate) fn new(engine: &'e Engine<S>, now: TimestampMs, limit: usize, manner: &'e Manner) -> Self {
        let hands = Hands { engine, now, began: Instant::now(), is_shared: manner.is_shared };
        let report = DueReport::default();
        Self { hands, manner, limit, report, looked_at: 0, look_at: None, late_ms: 0 }
    }

    fn is_over(&self, running: usize) -> bool {
        self.report.handled + running >= self.limit || self.has_looked_enough() || self.manner.is_stopping()
    }

    const fn has_looked_enough(&self) -> bool {
        self.looked_at >= self.limit.saturating_add(LOOKED_AT_MAX)
    }

    /// Handles what stands in some indexes up to a time, page by page; hands out the round if this pass came to its end. A pass that looked
    /// at many in vain is followed by one that begins where it stopped, so that whatever stands behind them has its turn too.
    pub(crate) async fn over(&mut self, indexes: &[Index], until: TimestampMs) -> Result<Option<Round>> {
        let poison = &self.hands.engine.poison;
        let mut round = poison.take_round(indexes).unwrap_or_else(|| Round::begin(self.hands.now));
        let (before, looked_at) = (self.report, self.looked_at);
        let ended = self.pages(indexes, until, &mut round.place).await?;
        round.looked_at += self.looked_at - looked_at;
        round.has_changed |= (self.report.handled, self.report.elsewhere) != (before.handled, before.elsewhere);
        round.look_at = round.look_at.into_iter().chain(self.look_at).min();
        if ended {
            return Ok(Some(round));
        }
        if self.has_looked_enough() && round.place.is_some() {
            poison.keep_round(indexes, round);
        }
        Ok(None)
    }

    /// Says whether it came to the end.
    async fn pages(&mut self, indexes: &[Index], until: TimestampMs, after: &mut Option<Position>) -> Result<bool> {
        while !self.is_over(0) {
            let bounds = Bounds::first(PAGE).after(after.clone()).until(Position::end_of(until.0));
            let mut page = whole_positions(list_all(&self.hands.engine.store, indexes, &bounds).await?);
            let Some(end) = page.last().map(|found| found.position.clone()) else { return Ok(true) };
            if !self.manner.is_shared {
                self.items(page, |position| *after = Some(position.clone())).await;
            } else {
                self.hands.shuffle(&mut page);
                if self.items(page, |_| ()).await {
                    *after = Some(end);
                }
            }
        }
        Ok(false)
    }

    /// Handles the items of a page, some at once; says whether all of them had their turn. A page that somebody else is doing is given up.
    async fn items(&mut self, page: Vec<Found>, mut begin: impl FnMut(&Position)) -> bool {
        let mut items = page.into_iter().peekable();
        let mut running: FuturesUnordered<BoxFuture<'e, Outcome>> = FuturesUnordered::new();
        let (mut ours, mut others) = (0, 0);
        loop {
            let is_contested = others > MISSES_MIN + ours / 4;
            while running.len() < self.manner.concurrency && !is_contested && !self.is_over(running.len()) {
                let Some(found) = items.next() else { break };
                begin(&found.position);
                self.looked_at += 1;
                let hands = self.hands;
                running.push(Box::pin(async move { hands.one(found).await }));
            }
            let Some(outcome) = running.next().await else { return items.peek().is_none() };
            ours += usize::from(matches!(outcome, Outcome::Handled { .. }));
            others += usize::from(matches!(outcome, Outcome::Elsewhere));
            self.count(&outcome);
            if self.manner.is_shared {
                // A store that never waits would keep everybody else from their turn.
                tokio::task::yield_now().await;
            }
        }
    }

    fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Handled { late_ms } => {
                self.report.handled += 1;
                self.late_ms = self.late_ms.max(*late_ms);
            }
            Outcome::Elsewhere => self.report.elsewhere += 1,
            Outcome::Failed => self.report.failed += 1,
            Outcome::Skipped => {}
            Outcome::TooYoung { look_at } => {
                self.look_at = Some(self.look_at.map_or(*look_at, |at| at.min(*look_at)));
            }
        }
    }
}

/// What handling an item takes, shared by those that are handled at once.
struct Hands<'e, S> {
    engine: &'e Engine<S>,
    now: TimestampMs,
    /// When the pass began, at `now`.
    began: Instant,
    is_shared: bool,
}

impl<S> Clone for Hands<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Hands<'_, S> {}

impl<S: Store> Hands<'_, S> {
    async fn one(self, found: Found) -> Outcome {
        let Found { index, position, key, record } = found;
        let (kind, kept_ms) = match index {
            Index::Due(kind) => (kind, 0),
            _ => (DueKind::Retention, self.engine.settings.retention_ms),
        };
        let due_at = TimestampMs(position.major).plus(kept_ms);
        let poison = &self.engine.poison;
        if if self.is_shared { poison.rests(kind, &key, self.now) } else { poison.skips(kind, &key) } {
            return Outcome::Skipped;
        }
        let look_at = due_at.plus(kind.grace_ms());
        if self.is_shared && !look_at.is_due(self.now) {
            return Outcome::TooYoung { look_at };
        }
        match self.within_bounds(kind, &key, record).await {
            Ok(Answer::Changed) => {
                poison.cleared(kind, &key);
                let late_ms = self.now.since(due_at).saturating_add(elapsed_ms(self.began));
                meters::handled(kind, late_ms);
                Outcome::Handled { late_ms }
            }
            Ok(Answer::Unchanged) => {
                poison.cleared(kind, &key);
                Outcome::Elsewhere
            }
            Ok(Answer::NotYet { look_at }) => {
                poison.waits(kind, key, look_at);
                Outcome::Skipped
            }
            Err(why) => {
                meters::failed(kind, &key, &why);
                poison.failed(kind, key, self.now, &why);
                Outcome::Failed
            }
        }
    }

    /// Handles an item in such a way that it can harm no other.
    async fn within_bounds(self, kind: DueKind, key: &Key, record: Option<Record>) -> Result<Answer, String> {
        let handled = self.handle(kind, key, record);
        if !self.is_shared {
            return handled.await;
        }
        let in_time = tokio::time::timeout(ITEM_MAX, guarded(handled)).await;
        in_time.unwrap_or_else(|_| Err(format!("it took longer than {} s", ITEM_MAX.as_secs())))
    }

    /// Whether we changed the item, or somebody else did, or it is to wait.
    async fn handle(self, kind: DueKind, key: &Key, record: Option<Record>) -> Result<Answer, String> {
        let record = record.ok_or("the record cannot be read")?;
        let text = |error: EngineError| error.to_string();
        if self.is_shared && kind.is_long() && self.has_changed(key, &record).await.map_err(text)? {
            return Ok(Answer::Unchanged);
        }
        match dispatch(self.engine, kind, record.clone(), self.now).await.map_err(text)? {
            Answer::Unchanged if !self.has_changed(key, &record).await.map_err(text)? => {
                Err("it is due as before".to_owned())
            }
            answer => Ok(answer),
        }
    }

    async fn has_changed(self, key: &Key, before: &Record) -> Result<bool> {
        let found = self.engine.store.read(std::slice::from_ref(key)).await?;
        Ok(found.first().and_then(Option::as_ref) != Some(before))
    }

    fn shuffle<T>(self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let other = self.engine.settings.entropy.uniform(end as u64);
            items.swap(end, usize::try_from(other).unwrap_or(end));
        }
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Cuts a full page so that it does not end between entries of one position: paging on skips all of them.
fn whole_positions(mut page: Vec<Found>) -> Vec<Found> {
    if page.len() == PAGE
        && let Some(last) = page.last().map(|found| found.position.clone())
        && page.first().is_some_and(|first| first.position != last)
    {
        page.retain(|found| found.position != last);
    }
    page
}
