//! Making room: what has been kept long enough goes, events are trimmed, the store tidies up. Nobody waits for any of it.

use ff_core::{Result, TimestampMs};

use super::{Context, TimerLoop, after};
use crate::index::{DueKind, Index};
use crate::store::Store;
use crate::timers::pass::{Manner, Pass};
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
    trim_at: TimestampMs,
    tidy_at: TimestampMs,
}

impl<S: Store> Cleanup<S> {
    /// Does what is to be done; says when to look again, unless that is right away.
    async fn look(&mut self) -> Result<Option<TimestampMs>> {
        let engine = &*self.context.engine;
        let now = self.context.now().await?;
        let kept_since = earlier(now, engine.settings.retention_ms);
        let mut pass = Pass::new(engine, now, LIMIT, &self.manner);
        pass.over(&self.indexes, now).await?;
        pass.over(&[Index::Terminal], kept_since).await?;
        let Pass { report, is_whole, .. } = pass;
        self.context.board.change(|health| {
            health.handled += report.handled as u64;
            health.elsewhere += report.elsewhere as u64;
        });
        if !is_whole || report.handled + report.elsewhere > 0 {
            return Ok(None);
        }
        engine.poison.forget_gone(&self.kinds, now);
        let next = first_after(engine, &self.indexes, Some(now)).await?;
        let finished = first_after(engine, &[Index::Terminal], Some(kept_since)).await?;
        let purge = finished.map(|at| at.plus(engine.settings.retention_ms));
        let retry = engine.poison.next_retry(&self.kinds);
        self.trim_events(now).await?;
        self.tidy(now).await?;
        self.context.board.passed(TimerLoop::Cleanup, now);
        let look_at = after(now, self.context.options.cleanup_every);
        let others = [next, purge, retry].into_iter().flatten();
        Ok(others.chain([look_at, self.trim_at, self.tidy_at]).min())
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
