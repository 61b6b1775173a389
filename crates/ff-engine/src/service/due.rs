//! Work that somebody waits for, at its time.
//!
//! The loop sleeps until the earliest time it knows of. That is a lower bound: entries are removed and move to later times without anybody
//! telling, and news of an earlier entry just moves the time. When it comes, the loop looks and learns the next one.

use std::time::Duration;

use ff_core::{Result, TimestampMs};
use tokio::time::Instant;

use super::{Context, TimerLoop, after, meters};
use crate::alarms::{DueNews, UNKNOWN};
use crate::index::{DueKind, Index};
use crate::store::Store;
use crate::timers::first_after;
use crate::timers::pass::{Manner, Pass};

/// Items of one pass.
const LIMIT: usize = 1024;

/// For how long to wait for a clock that stands still, as one does that was set back.
const STILL: Duration = Duration::from_millis(50);

/// The shortest time between two looks for what others may have added: they may write all the time, and their own timers know.
const UNKNOWN_EVERY: Duration = Duration::from_millis(20);

/// Everything is due by then.
const END_OF_TIME: TimestampMs = TimestampMs(i64::MAX);

pub(super) async fn run<S: Store>(context: Context<S>) -> Result<()> {
    let kinds: Vec<DueKind> = DueKind::ALL.into_iter().filter(|kind| !kind.is_cleanup()).collect();
    let indexes: Vec<Index> = kinds.iter().copied().map(Index::Due).collect();
    let due = Due { manner: context.manner(), context, kinds, indexes };
    // Listens before it looks, so that nothing is added in between.
    let mut news = due.context.engine.store.listen_due();
    while !due.context.is_stopping() {
        // What is added behind the place of a round that goes on is news.
        if !due.context.engine.poison.is_on_its_way(&due.indexes) {
            news.start_over();
        }
        let looked = Instant::now();
        if let Some(wake_at) = due.look().await? {
            due.sleep(wake_at, &mut news, looked + UNKNOWN_EVERY).await?;
            meters::woke();
            due.context.board.change(|health| health.wakeups += 1);
        }
    }
    Ok(())
}

struct Due<S> {
    context: Context<S>,
    manner: Manner,
    kinds: Vec<DueKind>,
    indexes: Vec<Index>,
}

impl<S: Store> Due<S> {
    /// Handles what is due; says when to look again, unless that is right away.
    async fn look(&self) -> Result<Option<TimestampMs>> {
        let engine = &*self.context.engine;
        let now = self.context.now().await?;
        let sweep_at = after(now, self.context.options.sweep_every);
        let first = first_after(engine, &self.indexes, None).await?;
        if !first.is_some_and(|at| at.is_due(now)) {
            engine.poison.forget_gone(&self.kinds, END_OF_TIME);
            engine.poison.drop_round(&self.indexes);
            self.passed(now);
            return Ok(first.into_iter().chain([sweep_at]).min());
        }
        let mut pass = Pass::new(engine, now, LIMIT, &self.manner);
        let round = pass.over(&self.indexes, now).await?;
        let Pass { report, late_ms, .. } = pass;
        self.context.board.change(|health| {
            health.handled += report.handled as u64;
            health.elsewhere += report.elsewhere as u64;
            if report.handled > 0 {
                health.lateness_ms = late_ms;
            }
        });
        let Some(round) = round else { return Ok(None) };
        engine.poison.forget_gone(&self.kinds, round.began_at);
        self.passed(now);
        // What was handled may be due again, as bulk work is.
        if round.has_changed {
            return Ok(None);
        }
        let next = first_after(engine, &self.indexes, Some(now)).await?;
        let not_before = after(now, round.rest());
        let retry = engine.poison.next_retry(&self.kinds).map(|at| at.max(not_before));
        Ok([next, retry, round.look_at].into_iter().flatten().chain([sweep_at]).min())
    }

    fn passed(&self, now: TimestampMs) {
        self.context.board.passed(TimerLoop::Due, now);
        meters::poisoned(self.context.engine.poison.poisoned());
    }

    /// Sleeps until a time, or an earlier one if there are news of it; if nobody knows which, until `unknown`.
    async fn sleep(&self, mut wake_at: TimestampMs, news: &mut DueNews, unknown: Instant) -> Result<()> {
        let store = &self.context.engine.store;
        loop {
            let woken = self.context.or_stop(async {
                tokio::select! {
                    biased;
                    at = news.before(wake_at) => Some(at),
                    () = store.sleep_until(wake_at) => None,
                }
            });
            match woken.await {
                None => return Ok(()),
                Some(Some(UNKNOWN)) => {
                    self.context.or_stop(tokio::time::sleep_until(unknown)).await;
                    return Ok(());
                }
                Some(Some(at)) if at.is_due(self.context.now().await?) => return Ok(()),
                Some(Some(at)) => wake_at = at,
                Some(None) if wake_at.is_due(self.context.now().await?) => return Ok(()),
                Some(None) => {
                    self.context.or_stop(tokio::time::sleep(STILL)).await;
                    return Ok(());
                }
            }
        }
    }
}
