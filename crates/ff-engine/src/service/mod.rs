//! The timer service: loops that run due work, clean up and reconcile, for as long as a process lives.
//!
//! Three loops, each under a supervisor: `due` sleeps until the earliest due time or until told of an earlier one, `cleanup` makes room,
//! `reconcile` goes round the partitions once a day. Any number of processes may run them on one deployment.

mod cleanup;
mod due;
mod health;
pub(crate) mod meters;
mod reconcile;
mod supervisor;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ff_core::{Result, TimestampMs};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use health::{LoopHealth, TimerHealth, TimerLoop};

use crate::engine::Engine;
use crate::store::Store;
use crate::timers::pass::Manner;
use crate::timers::{FailingItem, Poison};
use health::Board;
use supervisor::supervise;

/// The shortest span between two looks of any kind.
const SPAN_MIN: Duration = Duration::from_millis(100);

/// How timers run. A span below 100 ms counts as 100 ms, so that none keeps a process busy with looking; so does the time that one round of
/// the reconcilers has for each partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerOptions {
    /// How often due work is looked for although nobody told of any: for clocks that jump and news that are lost.
    pub sweep_every: Duration,
    /// How often there is a look for what can go.
    pub cleanup_every: Duration,
    /// How often old events are dropped.
    pub trim_events_every: Duration,
    /// How often the store may tidy up.
    pub tidy_every: Duration,
    /// How long one round of the reconcilers over all partitions takes.
    pub reconcile_every: Duration,
    /// Items that are handled at once.
    pub concurrency: usize,
}

impl Default for TimerOptions {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self {
            sweep_every: Duration::from_secs(30),
            cleanup_every: MINUTE,
            trim_events_every: 10 * MINUTE,
            tidy_every: 60 * MINUTE,
            reconcile_every: 24 * 60 * MINUTE,
            concurrency: 32,
        }
    }
}

impl TimerOptions {
    fn bounded(self) -> Self {
        Self {
            sweep_every: self.sweep_every.max(SPAN_MIN),
            cleanup_every: self.cleanup_every.max(SPAN_MIN),
            trim_events_every: self.trim_events_every.max(SPAN_MIN),
            tidy_every: self.tidy_every.max(SPAN_MIN),
            reconcile_every: self.reconcile_every.max(SPAN_MIN),
            concurrency: self.concurrency.max(1),
        }
    }
}

/// Timers at work. Dropping them ends them at once; [`stop`](Timers::stop) lets them finish what they have in hand.
#[derive(Debug)]
pub struct Timers {
    stopping: watch::Sender<bool>,
    loops: Vec<JoinHandle<()>>,
    board: Arc<Board>,
    poison: Arc<Poison>,
}

impl Timers {
    /// Starts the timers of an engine on the runtime of the caller.
    #[must_use]
    pub fn start<S: Store>(engine: Arc<Engine<S>>, options: TimerOptions) -> Self {
        let stopping = watch::Sender::new(false);
        let (board, poison) = (Arc::new(Board::default()), Arc::clone(&engine.poison));
        let context = Context {
            engine,
            options: Arc::new(options.bounded()),
            board: Arc::clone(&board),
            stopping: stopping.subscribe(),
        };
        let turns = Arc::new(cleanup::Turns::default());
        let clean_up = move |context| cleanup::run(context, Arc::clone(&turns));
        let loops = vec![
            tokio::spawn(supervise(TimerLoop::Due, context.clone(), due::run)),
            tokio::spawn(supervise(TimerLoop::Cleanup, context.clone(), clean_up)),
            tokio::spawn(supervise(TimerLoop::Reconcile, context, reconcile::run)),
        ];
        Self { stopping, loops, board, poison }
    }

    /// Finishes the items in hand, then ends.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        for running in self.loops.drain(..) {
            // A supervisor does not panic, and nobody else can cancel it.
            let _ = running.await;
        }
    }

    /// How they are doing.
    #[must_use]
    pub fn health(&self) -> TimerHealth {
        let mut health = self.board.read();
        health.name_failing(self.poison.failing());
        health
    }

    /// Every item that failed and is tried again, worst first.
    #[must_use]
    pub fn failing(&self) -> Vec<FailingItem> {
        self.poison.failing()
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.loops.iter().for_each(JoinHandle::abort);
    }
}

/// What the loops share.
struct Context<S> {
    engine: Arc<Engine<S>>,
    options: Arc<TimerOptions>,
    board: Arc<Board>,
    stopping: watch::Receiver<bool>,
}

impl<S> Clone for Context<S> {
    fn clone(&self) -> Self {
        let Self { engine, options, board, stopping } = self;
        let (engine, options, board) = (Arc::clone(engine), Arc::clone(options), Arc::clone(board));
        Self { engine, options, board, stopping: stopping.clone() }
    }
}

impl<S: Store> Context<S> {
    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits for something, or until the timers are stopped; says what came of it.
    async fn or_stop<T>(&self, something: impl Future<Output = T> + Send) -> Option<T> {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            biased;
            // A sender that is gone takes the loops with it.
            _ = stopping.wait_for(|stopping| *stopping) => None,
            out = something => Some(out),
        }
    }

    async fn sleep_until(&self, at: TimestampMs) {
        self.or_stop(self.engine.store.sleep_until(at)).await;
    }

    async fn now(&self) -> Result<TimestampMs> {
        self.engine.store.now().await
    }

    fn manner(&self) -> Manner {
        Manner { concurrency: self.options.concurrency, is_shared: true, stopping: Some(self.stopping.clone()) }
    }
}

/// This time plus a span.
fn after(now: TimestampMs, span: Duration) -> TimestampMs {
    now.plus(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}
