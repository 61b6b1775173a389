//! Lifecycles while a transaction of somebody else stays open that has written to a table of its own and sees everything as it was when it
//! began. The server cannot forget old versions of rows meanwhile, and whoever waits for older transactions waits for this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ff_core::backend::EngineBackend;
use ff_core::backend::subscriptions::{CompletionEvent, ScannerFilter, Subscription};
use ff_core::cursor::EventCursor;
use futures_util::StreamExt;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::lifecycle;
use crate::postgres::connect;
use crate::rounds::{Side, Spread};
use crate::settings::{CALLERS, Options};
use crate::stores::Subject;
use crate::work::{Measured, priority};

/// How long a subscriber may be behind at the end, the foreign transaction still being open.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the session that asks has a transaction with a number and an old view.
const HOLDS: &str = "
    SELECT backend_xid IS NOT NULL AND backend_xmin IS NOT NULL
    FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// Lifecycles with and without it, each for as long as it is open.
#[derive(Clone, Debug, Serialize)]
pub struct ForeignReport {
    /// Beside the foreign transaction, in slices of the measured time.
    #[serde(flatten)]
    pub with: Side,
    /// Without it, on a store of its own, before.
    pub without: Side,
    /// For how many seconds it was open.
    pub open_s: f64,
    /// Rate with it against the rate without it: the middle of all that time.
    pub ratio: f64,
    /// The same for the last quarter of that time.
    pub ratio_end: f64,
    /// Lifecycles while it was open.
    pub completed: u64,
    /// How many of those a subscriber heard of while it was open.
    pub events: u64,
    /// The longest time between two of them.
    pub silence_max_ms: f64,
}

/// Measures without, then with a foreign transaction.
pub async fn run(subject: &dyn Subject, options: &Options) -> Result<ForeignReport> {
    let url = subject.postgres().context("there is no server for a foreign transaction")?;
    let without = measure(subject, options, None).await?;
    println!("without: {:.0}/s", middle(&without.slices));
    let with = measure(subject, options, Some(url)).await?;
    println!("with: {:.0}/s, {} of {} events", middle(&with.slices), with.events, with.completed);
    Ok(ForeignReport {
        with: Side::of(&with.slices),
        without: Side::of(&without.slices),
        open_s: with.open.as_secs_f64(),
        ratio: middle(&with.slices) / middle(&without.slices),
        ratio_end: middle(last_quarter(&with.slices)) / middle(last_quarter(&without.slices)),
        completed: with.completed,
        events: with.events,
        silence_max_ms: with.silence_max.as_secs_f64() * 1e3,
    })
}

/// One side, slice by slice.
struct Measurement {
    slices: Vec<Measured>,
    open: Duration,
    completed: u64,
    events: u64,
    silence_max: Duration,
}

async fn measure(subject: &dyn Subject, options: &Options, foreign: Option<&str>) -> Result<Measurement> {
    let opened = subject.open().await?;
    lifecycle::measure(&opened.backend, CALLERS[0], priority, options.warm_up()).await?;
    let subscriber = Subscriber::start(&opened.backend).await?;
    let foreign = match foreign {
        Some(url) => Some(Foreign::begin(url).await?),
        None => None,
    };
    let begin = Instant::now();
    let (mut slices, mut completed) = (Vec::new(), 0);
    while begin.elapsed() < options.foreign() {
        let time = options.measured().min(options.foreign());
        let slice = lifecycle::measure(&opened.backend, CALLERS[0], priority, time).await?;
        slices.push(slice.measured);
        completed += slice.count as u64;
    }
    let open = begin.elapsed();
    let (events, silence_max) = subscriber.heard(completed).await?;
    if let Some(foreign) = foreign {
        foreign.end().await?;
    }
    Ok(Measurement { slices, open, completed, events, silence_max })
}

/// The middle of the slices: a slow moment of the disk is not the doing of a transaction.
fn middle(slices: &[Measured]) -> f64 {
    Spread::of(slices.iter().map(|slice| slice.per_s)).median
}

fn last_quarter(slices: &[Measured]) -> &[Measured] {
    &slices[slices.len() - slices.len().div_ceil(4)..]
}

/// A transaction that has nothing to do with the store.
struct Foreign(Client);

impl Foreign {
    /// Writes a row, so that the transaction has a number that others can wait for, and keeps one view of everything, so that whatever
    /// others replace since must be kept for it.
    async fn begin(url: &str) -> Result<Self> {
        let client = connect(url).await?;
        client.batch_execute("CREATE TABLE IF NOT EXISTS public.foreign_note (text text NOT NULL)").await?;
        client
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO public.foreign_note VALUES ('open')")
            .await?;
        let foreign = Self(client);
        foreign.require_open().await?;
        Ok(foreign)
    }

    /// That it has a number and a view which others must respect, also from the side of the server.
    async fn require_open(&self) -> Result<()> {
        let holds: bool = self.0.query_one(HOLDS, &[]).await?.try_get(0)?;
        ensure!(holds, "the foreign transaction holds nothing back");
        Ok(())
    }

    async fn end(self) -> Result<()> {
        self.require_open().await?;
        Ok(self.0.batch_execute("COMMIT").await?)
    }
}

/// Counts completions as they are told.
struct Subscriber {
    received: Arc<AtomicU64>,
    listening: JoinHandle<Result<Duration>>,
    over: tokio::sync::oneshot::Sender<()>,
}

impl Subscriber {
    async fn start(backend: &Arc<dyn EngineBackend>) -> Result<Self> {
        let feed = backend.subscribe_completion(EventCursor::TAIL, &ScannerFilter::default()).await?;
        let received = Arc::new(AtomicU64::new(0));
        let (over, until) = tokio::sync::oneshot::channel();
        let listening = tokio::spawn(listen(feed, Arc::clone(&received), until));
        Ok(Self { received, listening, over })
    }

    /// How many it received of those that it can expect, and the longest time between two of them.
    async fn heard(self, expected: u64) -> Result<(u64, Duration)> {
        let begin = Instant::now();
        while self.received.load(Ordering::Relaxed) < expected && begin.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let received = self.received.load(Ordering::Relaxed);
        // Nobody listens only when the feed has failed, which the answer tells.
        let _ = self.over.send(());
        Ok((received, self.listening.await??))
    }
}

/// The longest silence, the one at the end included.
async fn listen(
    mut feed: Subscription<CompletionEvent>,
    received: Arc<AtomicU64>,
    mut until: tokio::sync::oneshot::Receiver<()>,
) -> Result<Duration> {
    let (mut last, mut silence_max) = (Instant::now(), Duration::ZERO);
    loop {
        let event = tokio::select! {
            event = feed.next() => Some(event.context("the feed ended")??),
            _ = &mut until => None,
        };
        silence_max = silence_max.max(last.elapsed());
        last = Instant::now();
        if event.is_none() {
            return Ok(silence_max);
        }
        received.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Percentiles;

    #[test]
    fn the_end_is_the_last_quarter_and_never_nothing() {
        let slices =
            [8.0, 6.0, 4.0, 2.0, 1.0].map(|per_s| Measured { per_s, calls: Percentiles::default(), cost: None });

        assert_eq!(middle(&slices), 4.0);
        assert_eq!(middle(last_quarter(&slices)), 1.5);
        assert_eq!(middle(last_quarter(&slices[..1])), 8.0);
    }
}
