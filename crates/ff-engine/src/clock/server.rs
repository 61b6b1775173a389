//! The store's time: that of the server, or one that a test owns.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use super::Clock;
use ff_core::TimestampMs;
use ff_core::backend::layer::BoxFuture;

/// Longer than an answer can take: what is further behind was set back.
const SET_BACK_MS: i64 = 60_000;

/// The server's clock, as this process last saw it, carried on by the clock of this machine.
#[derive(Debug)]
struct ServerClock {
    began: Instant,
    /// What to add to the time since then.
    offset: AtomicI64,
}

impl ServerClock {
    fn now(&self) -> i64 {
        let elapsed = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        elapsed.saturating_add(self.offset.load(Ordering::Relaxed))
    }

    /// The server answered that this was the time. An answer takes a while, so it is at least that late: only a clock that was set back is
    /// followed back.
    fn observe(&self, time: i64) {
        let elapsed = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let (known, seen) = (self.offset.load(Ordering::Relaxed), time.saturating_sub(elapsed));
        if seen > known || known.saturating_sub(seen) > SET_BACK_MS {
            self.offset.store(seen, Ordering::Relaxed);
        }
    }
}

#[derive(Clone)]
enum Source {
    Server(Arc<ServerClock>),
    Given(Arc<dyn Clock>),
}

/// The store's time, never backwards in this process.
#[derive(Clone)]
pub struct StoreClock {
    source: Source,
    latest: Arc<AtomicI64>,
}

impl StoreClock {
    /// The given clock, or else the server's, which shows this time.
    #[must_use]
    pub fn new(given: Option<Arc<dyn Clock>>, server: TimestampMs) -> Self {
        let source = match given {
            Some(clock) => Source::Given(clock),
            None => Source::Server(Arc::new(ServerClock { began: Instant::now(), offset: AtomicI64::new(server.0) })),
        };
        Self { source, latest: Arc::new(AtomicI64::new(i64::MIN)) }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> TimestampMs {
        let now = match &self.source {
            Source::Server(clock) => clock.now(),
            Source::Given(clock) => clock.now().0,
        };
        TimestampMs(self.latest.fetch_max(now, Ordering::AcqRel).max(now))
    }

    /// The server says what time it is.
    pub fn observe(&self, time: i64) {
        if let Source::Server(clock) = &self.source {
            clock.observe(time);
        }
    }

    /// Ends when the time has come.
    #[must_use]
    pub fn sleep_until(&self, at: TimestampMs) -> BoxFuture<'static, ()> {
        match &self.source {
            Source::Given(clock) => clock.sleep_until(at),
            Source::Server(_) => {
                let clock = self.clone();
                Box::pin(async move {
                    while !at.is_due(clock.now()) {
                        tokio::time::sleep(Duration::from_millis(at.since(clock.now()))).await;
                    }
                })
            }
        }
    }
}
