//! Only so many calls per second.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_core::backend::layer::{Around, BoxFuture, Call};
use ff_core::{EngineError, Result, TimestampMs};

use super::clock::ms;
use super::{Class, Clock, SystemClock, class_of};

/// How many calls may be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    per_ms: f64,
    burst: u32,
}

impl Rate {
    /// So many calls in every second, and as many at once; 0 refuses all.
    #[must_use]
    pub fn per_second(calls: u32) -> Self {
        Self { per_ms: f64::from(calls) / 1000.0, burst: calls }
    }

    /// So many calls in every minute, and as many at once; 0 refuses all.
    #[must_use]
    pub fn per_minute(calls: u32) -> Self {
        Self { per_ms: f64::from(calls) / 60_000.0, burst: calls }
    }

    /// Most calls at once, after a pause; at least 1.
    #[must_use]
    pub fn burst(self, calls: u32) -> Self {
        Self { burst: calls.max(1), ..self }
    }
}

/// Limits how often the operations of a class are called, by a bucket of tokens for each class that has a limit.
///
/// A call for which there is no token is refused with `ResourceExhausted`, which names the class and says when to try again,
/// or waits for its turn when that is allowed; calls that wait are served in order.
pub struct RateLimit {
    classify: Box<dyn Fn(&'static str) -> Class + Send + Sync>,
    buckets: BTreeMap<Class, Bucket>,
    wait_max: Duration,
    clock: Arc<dyn Clock>,
}

impl RateLimit {
    /// No limit at all, operations classified by [`class_of`].
    #[must_use]
    pub fn new() -> Self {
        Self {
            classify: Box::new(class_of),
            buckets: BTreeMap::new(),
            wait_max: Duration::ZERO,
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// Limits a class.
    #[must_use]
    pub fn limit(mut self, class: Class, rate: Rate) -> Self {
        self.buckets.insert(class, Bucket::new(rate));
        self
    }

    /// Says which class an operation belongs to.
    #[must_use]
    pub fn classify(mut self, classify: impl Fn(&'static str) -> Class + Send + Sync + 'static) -> Self {
        self.classify = Box::new(classify);
        self
    }

    /// Lets a call wait for its turn instead of refusing it, when its turn comes within `longest`.
    #[must_use]
    pub const fn wait_at_most(mut self, longest: Duration) -> Self {
        self.wait_max = longest;
        self
    }

    /// Takes the time from here.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Takes a token and waits for its turn.
    async fn admit(&self, op: &'static str) -> Result<()> {
        let class = (self.classify)(op);
        let Some(bucket) = self.buckets.get(&class) else { return Ok(()) };
        let wait = bucket.take(self.clock.now(), self.wait_max).map_err(|refused| EngineError::ResourceExhausted {
            pool: class.0,
            max: bucket.rate.burst,
            retry_after_ms: refused.retry_after_ms,
        })?;
        if wait > Duration::ZERO {
            let turn = Turn { bucket };
            self.clock.sleep(wait).await;
            turn.came();
        }
        Ok(())
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("buckets", &self.buckets).field("wait_max", &self.wait_max).finish()
    }
}

impl Around for RateLimit {
    fn around<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        Box::pin(async move {
            self.admit(op).await?;
            call.once().await
        })
    }
}

/// Tokens of one class. Below zero are the turns of those who wait.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    level: Mutex<Option<Level>>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    tokens: f64,
    at: TimestampMs,
}

struct Refused {
    /// Absent when no token ever comes.
    retry_after_ms: Option<u32>,
}

/// Sums of fractions come out a little short.
const WHOLE: f64 = 1.0 - 1e-9;

impl Bucket {
    const fn new(rate: Rate) -> Self {
        Self { rate, level: Mutex::new(None) }
    }

    /// Takes a token, now or as the next one in line; how long to wait for it.
    fn take(&self, now: TimestampMs, wait_max: Duration) -> Result<Duration, Refused> {
        let mut level = self.level();
        let tokens = level.map_or(f64::from(self.rate.burst), |level| self.refilled(level, now));
        let wait_ms = if tokens >= WHOLE { 0.0 } else { ((1.0 - tokens) / self.rate.per_ms).ceil() };
        let turn = wait_ms <= ms(wait_max) as f64;
        *level = Some(Level { tokens: if turn { tokens - 1.0 } else { tokens }, at: now });
        if turn {
            Ok(Duration::from_millis(wait_ms as u64))
        } else {
            Err(Refused { retry_after_ms: wait_ms.is_finite().then_some(wait_ms as u32) })
        }
    }

    fn refilled(&self, level: Level, now: TimestampMs) -> f64 {
        (level.tokens + now.since(level.at) as f64 * self.rate.per_ms).min(f64::from(self.rate.burst))
    }

    fn give_back(&self) {
        if let Some(level) = self.level().as_mut() {
            level.tokens += 1.0;
        }
    }

    fn level(&self) -> MutexGuard<'_, Option<Level>> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token that was taken ahead of time; whoever gives up waiting gives it back.
struct Turn<'a> {
    bucket: &'a Bucket,
}

impl Turn<'_> {
    fn came(self) {
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.bucket.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use ff_core::backend::{Connection, EngineBackend};
    use ff_core::error::ErrorClass;
    use ff_engine::clock::ManualClock;

    use super::super::stack;
    use super::super::testing::{HandMovedClock, memory};
    use super::*;

    const PINGS: Class = Class("pings");

    async fn limited(limits: RateLimit, clock: &ManualClock) -> Arc<dyn EngineBackend> {
        let limits = limits.clock(Arc::new(HandMovedClock(clock.clone())));
        stack(memory().await).rate_limit(limits.classify(|op| if op == "ping" { PINGS } else { class_of(op) })).build()
    }

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_call_beyond_the_rate_is_refused_until_its_time_comes() {
        let clock = ManualClock::default();
        let backend = limited(RateLimit::new().limit(PINGS, Rate::per_second(3).burst(2)), &clock).await;

        backend.ping().await.unwrap();
        backend.ping().await.unwrap();
        let refusal = backend.ping().await.unwrap_err();

        assert_eq!(refusal.class(), ErrorClass::Retryable);
        assert!(
            matches!(refusal, EngineError::ResourceExhausted { pool: "pings", max: 2, retry_after_ms: Some(334) }),
            "{refusal:?}"
        );
        clock.advance(333);
        assert!(backend.ping().await.is_err());
        clock.advance(1);
        backend.ping().await.unwrap();
    }

    #[tokio::test]
    async fn classes_do_not_share_their_tokens_and_others_have_no_limit() {
        let clock = ManualClock::default();
        let limits = RateLimit::new().limit(PINGS, Rate::per_minute(1)).limit(Class::UPKEEP, Rate::per_second(1));
        let backend = limited(limits, &clock).await;

        backend.ping().await.unwrap();
        assert!(backend.ping().await.is_err());
        backend.server_time_ms().await.unwrap();
        assert!(backend.server_time_ms().await.is_err());
        for _ in 0..10 {
            backend.list_lanes(None, 1).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_rate_of_nothing_names_no_time() {
        let backend = limited(RateLimit::new().limit(PINGS, Rate::per_second(0)), &ManualClock::default()).await;

        let refusal = backend.ping().await.unwrap_err();

        assert!(matches!(refusal, EngineError::ResourceExhausted { retry_after_ms: None, .. }), "{refusal:?}");
    }

    #[tokio::test]
    async fn calls_wait_for_their_turn_when_they_may() {
        let clock = ManualClock::default();
        let limits = RateLimit::new().limit(PINGS, Rate::per_second(10).burst(1));
        let backend = limited(limits.wait_at_most(Duration::from_millis(200)), &clock).await;
        backend.ping().await.unwrap();
        let mut first = pin!(backend.ping());
        let mut second = pin!(backend.ping());

        assert!(poll(first.as_mut()).is_pending());
        assert!(poll(second.as_mut()).is_pending());
        let third = backend.ping().await.unwrap_err();

        assert!(matches!(third, EngineError::ResourceExhausted { retry_after_ms: Some(300), .. }), "{third:?}");
        clock.advance(100);
        first.await.unwrap();
        assert!(poll(second.as_mut()).is_pending());
        clock.advance(100);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn whoever_gives_up_waiting_leaves_the_turn_to_others() {
        let clock = ManualClock::default();
        let limits = RateLimit::new().limit(PINGS, Rate::per_second(10).burst(1));
        let backend = limited(limits.wait_at_most(Duration::from_millis(100)), &clock).await;
        backend.ping().await.unwrap();
        let mut impatient = Box::pin(backend.ping());
        assert!(poll(impatient.as_mut()).is_pending());
        assert!(backend.ping().await.is_err());

        drop(impatient);
        let mut next = pin!(backend.ping());

        assert!(poll(next.as_mut()).is_pending());
        clock.advance(100);
        next.await.unwrap();
    }
}
