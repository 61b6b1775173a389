//! Making room: what has been kept long enough goes, events are trimmed, the store tidies up. Nobody waits for any of it.

use ff_core::{Result, TimestampMs};

use super::{Context, TimerLoop, after};
use crate::index::{DueKind, Index};
use crate::store::Store;
use crate::timers::pass::{Manner, Pass};
use crate::timers::round::Round;
use crate::timers::{earlier, first_after};

/// Items of one pass.
const LIMIT: usize = 1024;

/// Events dropped at once.
const EVENTS: usize = 1000;

pub(super) async fn run<S: Store>(context: Context<S>) -> Result<()> {
    let kinds: Vec<DueKind> = DueKind::ALL.into_iter().filter(|kind| kind.is_cleanup()).collect();
    let indexes: Vec<Index> = kinds.iter().copied().map(Index::Due).collect();
    let began = context.now().await?;
    let mut cleanup = Cleanup {
        manner: context.manner(),
        kinds,
        indexes,
        due: None,
        terminal: None,
        trim_at: began,
        tidy_at: after(began, context.options.tidy_every),
        context,
    };
    while !cleanup.context.is_stopping() {
        if let Some(look_at) = cleanup.look().await? {
            cleanup.context.sleep_until(look_at).await;
        }
    }
    Ok(())
}

struct Cleanup<S> {
    context: Context<S>,
    manner: Manner,
    kinds: Vec<DueKind>,
    indexes: Vec<Index>,
    /// The rounds that came to their end while the other one did not.
    due: Option<Round>,
    terminal: Option<Round>,
    trim_at: TimestampMs,
    tidy_at: TimestampMs,
}

impl<S: Store> Cleanup<S> {
    /// Does what is to be done; says when to look again, unless that is right away.
    async fn look(&mut self) -> Result<Option<TimestampMs>> {
        let engine = &*self.context.engine;
        let now = self.context.now().await?;
        let kept_since = earlier(now, engine.settings.retention_ms);
        if self.due.is_none() {
            self.due = self.pass(&self.indexes, now, now).await?;
        }
        if self.terminal.is_none() {
            self.terminal = self.pass(&[Index::Terminal], now, kept_since).await?;
        }
        let (Some(due), Some(terminal)) = (&self.due, &self.terminal) else { return Ok(None) };
        let has_changed = due.has_changed || terminal.has_changed;
        let not_before = after(now, due.rest() + terminal.rest());
        engine.poison.forget_gone(&self.kinds, due.began_at.min(terminal.began_at));
        (self.due, self.terminal) = (None, None);
        if has_changed {
            return Ok(None);
        }
        let next = first_after(engine, &self.indexes, Some(now)).await?;
        let finished = first_after(engine, &[Index::Terminal], Some(kept_since)).await?;
        let purge = finished.map(|at| at.plus(engine.settings.retention_ms));
        let retry = engine.poison.next_retry(&self.kinds).map(|at| at.max(not_before));
        self.trim_events(now).await?;
        self.tidy(now).await?;
        self.context.board.passed(TimerLoop::Cleanup, now);
        let look_at = after(now, self.context.options.cleanup_every);
        let others = [next, purge, retry].into_iter().flatten();
        Ok(others.chain([look_at, self.trim_at, self.tidy_at]).min())
    }

    /// One pass over some indexes, with limits of its own; answers the round if it came to its end.
    async fn pass(&self, indexes: &[Index], now: TimestampMs, until: TimestampMs) -> Result<Option<Round>> {
        let mut pass = Pass::new(&self.context.engine, now, LIMIT, &self.manner);
        let round = pass.over(indexes, until).await?;
        self.context.board.change(|health| {
            health.handled += pass.report.handled as u64;
            health.elsewhere += pass.report.elsewhere as u64;
        });
        Ok(round)
    }

    async fn trim_events(&mut self, now: TimestampMs) -> Result<()> {
        if !self.trim_at.is_due(now) {
            return Ok(());
        }
        let engine = &*self.context.engine;
        let kept_since = earlier(now, engine.settings.event_retention_ms);
        while !self.context.is_stopping() && engine.store.trim_events(kept_since, EVENTS).await? == EVENTS {}
        self.trim_at = after(now, self.context.options.trim_events_every);
        Ok(())
    }

    async fn tidy(&mut self, now: TimestampMs) -> Result<()> {
        if self.tidy_at.is_due(now) {
            self.context.engine.store.tidy().await?;
            self.tidy_at = after(now, self.context.options.tidy_every);
        }
        Ok(())
    }
}
