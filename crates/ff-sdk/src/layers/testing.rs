//! What the tests of layers share: a backend, a store that cannot be reached, clocks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ff_core::backend::EngineBackend;
use ff_core::backend::layer::{Around, BoxFuture, Call, Unsent};
use ff_core::{EngineError, Result, TimestampMs};
use ff_engine::clock::{Clock as _, ManualClock};
use ff_engine::memory::MemoryStore;
use ff_engine::{Engine, Settings};

use super::Clock;
use super::clock::ms;

/// A fresh engine in memory.
pub(super) async fn memory() -> Arc<dyn EngineBackend> {
    let store = MemoryStore::new(Arc::new(ManualClock::at(TimestampMs(1_000))));
    Arc::new(Engine::open(store, Settings::default()).await.expect("a fresh store opens"))
}

/// A clock that moves when a test moves it.
pub(super) struct HandMovedClock(pub(super) ManualClock);

impl Clock for HandMovedClock {
    fn now(&self) -> TimestampMs {
        self.0.now()
    }

    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(self.0.now().plus(ms(wait)))
    }
}

/// A clock that jumps ahead whenever somebody sleeps, and remembers the naps.
#[derive(Default)]
pub(super) struct JumpingClock {
    naps: Mutex<Vec<Duration>>,
}

impl JumpingClock {
    pub(super) fn naps(&self) -> Vec<Duration> {
        self.naps.lock().expect("not poisoned").clone()
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> TimestampMs {
        TimestampMs::ZERO.plus(self.naps().into_iter().map(ms).sum())
    }

    fn sleep(&self, wait: Duration) -> BoxFuture<'static, ()> {
        self.naps.lock().expect("not poisoned").push(wait);
        Box::pin(std::future::ready(()))
    }
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// It has its effect, and the answer is lost.
    AnswerLost,
    /// It never leaves the process.
    NotSent,
    /// It cannot succeed later either.
    Hopeless,
}

/// Stands right before the backend and lets the next calls go wrong; clones share the count.
#[derive(Clone)]
pub(super) struct Faulty {
    trouble: Trouble,
    left: Arc<AtomicU32>,
    made: Arc<AtomicU32>,
}

impl Faulty {
    pub(super) fn new(trouble: Trouble, calls: u32) -> Self {
        Self { trouble, left: Arc::new(AtomicU32::new(calls)), made: Arc::default() }
    }

    /// Lets so many of the next calls go wrong.
    pub(super) fn fail(&self, calls: u32) {
        self.left.store(calls, Ordering::SeqCst);
    }

    /// How many calls have come this far.
    pub(super) fn made(&self) -> u32 {
        self.made.load(Ordering::SeqCst)
    }

    fn error(&self) -> EngineError {
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let retryable = !matches!(self.trouble, Trouble::Hopeless);
        let source: Arc<dyn std::error::Error + Send + Sync> = match self.trouble {
            Trouble::NotSent => Arc::new(Unsent::new(broken)),
            Trouble::AnswerLost | Trouble::Hopeless => Arc::new(broken),
        };
        EngineError::Transport { backend: "faulty", retryable, source }
    }
}

impl Around for Faulty {
    fn around<'a, T, C>(&'a self, _op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        Box::pin(async move {
            self.made.fetch_add(1, Ordering::SeqCst);
            ::tracing::info!("on the way");
            let fails = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            match self.trouble {
                _ if !fails => call.once().await,
                Trouble::AnswerLost => call.once().await.and_then(|_| Err(self.error())),
                Trouble::NotSent | Trouble::Hopeless => Err(self.error()),
            }
        })
    }
}
