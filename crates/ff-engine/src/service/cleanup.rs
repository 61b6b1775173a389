//! Making room: what has been kept long enough goes, events are trimmed, the store tidies up. Nobody waits for any of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ff_core::{Result, TimestampMs};

use super::{Context, TimerLoop, TimerOptions, after};
use crate::index::{DueKind, Index};
use crate::store::Store;
use crate::timers::pass::{Manner, Pass};
use crate::timers::round::Round;
use crate::timers::{earlier, first_after};

/// Items of one pass.
const LIMIT: usize = 1024;

/// Events dropped at once.
const EVENTS: usize = 1000;

/// The shortest time between two looks, unless a look stopped at its limit: things that come one by one go a few at a time.
const PAUSE: Duration = Duration::from_millis(100);

/// When the rest of the upkeep has its turn; outlives the loop, which may be started again and again.
#[derive(Debug, Default)]
pub(super) struct Turns {
    inner: Mutex<(Option<TimestampMs>, Option<TimestampMs>)>,
}

impl Turns {
    /// When events are trimmed and when the store is tidied; a process that starts trims at once.
    fn at(&self, now: TimestampMs, options: &TimerOptions) -> (TimestampMs, TimestampMs) {
        let mut turns = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (trim, tidy) = &mut *turns;
        (*trim.get_or_insert(now), *tidy.get_or_insert_with(|| after(now, options.tidy_every)))
    }

    fn set(&self, trim_at: TimestampMs, tidy_at: TimestampMs) {
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = (Some(trim_at), Some(tidy_at));
    }
}

/// When to look again.
enum Next {
    AtOnce,
    Soon,
    At(TimestampMs),
}

pub(super) async fn run<S: Store>(context: Context<S>, turns: Arc<Turns>) -> Result<()> {
    let kinds: Vec<DueKind> = DueKind::ALL.into_iter().filter(|kind| kind.is_cleanup()).collect();
    let indexes: Vec<Index> = kinds.iter().copied().map(Index::Due).collect();
    let manner = context.manner();
    let mut cleanup = Cleanup { context, manner, kinds, indexes, due: None, terminal: None, turns };
    while !cleanup.context.is_stopping() {
        let next = cleanup.look().await?;
        if !matches!(next, Next::AtOnce) {
            cleanup.context.or_stop(tokio::time::sleep(PAUSE)).await;
        }
        if let Next::At(look_at) = next {
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
    turns: Arc<Turns>,
}

impl<S: Store> Cleanup<S> {
    /// Does what is to be done; says when to look again.
    async fn look(&mut self) -> Result<Next> {
        let engine = &*self.context.engine;
        let now = self.context.now().await?;
        let kept_since = earlier(now, engine.settings.retention_ms);
        if self.due.is_none() {
            self.due = self.pass(&self.indexes, now, now).await?;
        }
        if self.terminal.is_none() {
            self.terminal = self.pass(&[Index::Terminal], now, kept_since).await?;
        }
        let turn_at = self.take_turns(now).await?;
        let (Some(due), Some(terminal)) = (&self.due, &self.terminal) else { return Ok(Next::AtOnce) };
        let has_changed = due.has_changed || terminal.has_changed;
        let not_before = after(now, due.rest() + terminal.rest());
        engine.poison.forget_gone(&self.kinds, due.began_at.min(terminal.began_at));
        (self.due, self.terminal) = (None, None);
        self.context.board.passed(TimerLoop::Cleanup, now);
        // What was handled may be due again, as long streams are.
        if has_changed {
            return Ok(Next::Soon);
        }
        let next = first_after(engine, &self.indexes, Some(now)).await?;
        let finished = first_after(engine, &[Index::Terminal], Some(kept_since)).await?;
        let purge = finished.map(|at| at.plus(engine.settings.retention_ms));
        let retry = engine.poison.next_retry(&self.kinds).map(|at| at.max(not_before));
        let look_at = after(now, self.context.options.cleanup_every).min(turn_at);
        Ok(Next::At([next, purge, retry].into_iter().flatten().fold(look_at, TimestampMs::min)))
    }

    /// One pass over some indexes, with limits of its own; answers the round if it came to its end.
    async fn pass(&self, indexes: &[Index], now: TimestampMs, until: TimestampMs) -> Result<Option<Round>> {
        let engine = &*self.context.engine;
        let is_on_its_way = engine.poison.is_on_its_way(indexes);
        // To ask when something can go is cheaper than to list what can.
        if !is_on_its_way && !first_after(engine, indexes, None).await?.is_some_and(|at| at.is_due(until)) {
            return Ok(Some(Round::begin(now)));
        }
        let mut pass = Pass::new(engine, now, LIMIT, &self.manner);
        let round = pass.over(indexes, until).await?;
        self.context.board.change(|health| {
            health.handled += pass.report.handled as u64;
            health.elsewhere += pass.report.elsewhere as u64;
        });
        Ok(round)
    }

    /// Trims events and lets the store tidy up, each at its time; says when the next turn is. One that fails has had its turn, so that it
    /// holds up nothing else.
    async fn take_turns(&self, now: TimestampMs) -> Result<TimestampMs> {
        let options = &self.context.options;
        let (mut trim_at, mut tidy_at) = self.turns.at(now, options);
        let (trims, tidies) = (trim_at.is_due(now), tidy_at.is_due(now));
        if trims {
            trim_at = after(now, options.trim_events_every);
        }
        if tidies {
            tidy_at = after(now, options.tidy_every);
        }
        self.turns.set(trim_at, tidy_at);
        let trimmed = if trims { self.trim_events(now).await } else { Ok(()) };
        let tidied = if tidies { self.context.engine.store.tidy().await } else { Ok(()) };
        trimmed.and(tidied).map(|()| trim_at.min(tidy_at))
    }

    async fn trim_events(&self, now: TimestampMs) -> Result<()> {
        let engine = &*self.context.engine;
        let kept_since = earlier(now, engine.settings.event_retention_ms);
        while !self.context.is_stopping() && engine.store.trim_events(kept_since, EVENTS).await? == EVENTS {}
        Ok(())
    }
}
