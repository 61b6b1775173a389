//! The time of this process has one door, which tests can own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ff_core::TimestampMs;
use ff_core::backend::layer::BoxFuture;
use tokio::time::Instant;

/// Where layers take their time from.
pub trait Clock: Send + Sync + 'static {
    /// Now, by this process; never earlier than before.
    fn now(&self) -> TimestampMs;

    /// Ends after `wait`.
    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()>;
}

/// The clock of the machine as it was at the start, and the time that has passed since.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: TimestampMs,
    since: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: TimestampMs::ZERO.plus(ms(elapsed)), since: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> TimestampMs {
        self.start.plus(ms(self.since.elapsed()))
    }

    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(wait))
    }
}

/// Whole milliseconds.
pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
