//! Leaves a store alone that cannot be reached.
//!
//! ```text
//!            so many transport errors in a row
//!   closed ─────────────────────────────────────▶ open ◀─────────────┐
//!      ▲                                           │ cool-down over: │ the probe fails
//!      │            the probe is answered          ▼ one call probes │
//!      └─────────────────────────────────────── probing ─────────────┘
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::tracing::{info, warn};
use ff_core::backend::layer::{Around, BoxFuture, Call, Unsent};
use ff_core::{EngineError, Result, TimestampMs};

use super::clock::ms;
use super::{Clock, SystemClock, transport};

/// Refuses calls for a while after several transport errors in a row, then lets one call probe.
///
/// Any answer of the store closes the circuit, refusals included; how long an answer takes does not matter, so calls that
/// wait for work are as good as others. A probe that takes longer than its patience is joined by another one.
pub struct CircuitBreaker {
    limits: Limits,
    backend: &'static str,
    clock: Arc<dyn Clock>,
    circuit: Mutex<Circuit>,
}

impl CircuitBreaker {
    /// Opens after 5 errors for 30 seconds; a probe has a second for itself.
    #[must_use]
    pub fn new() -> Self {
        Self {
            limits: Limits { failures: 5, cool_down_ms: 30_000, patience_ms: 1_000 },
            backend: "unknown",
            clock: Arc::new(SystemClock::default()),
            circuit: Mutex::new(Circuit { epoch: 0, state: State::Closed { failures: 0 } }),
        }
    }

    /// How many transport errors in a row open the circuit; at least 1.
    #[must_use]
    pub fn failures(mut self, failures: u32) -> Self {
        self.limits.failures = failures.max(1);
        self
    }

    /// How long the store is left alone.
    #[must_use]
    pub fn cool_down(mut self, cool_down: Duration) -> Self {
        self.limits.cool_down_ms = ms(cool_down);
        self
    }

    /// How long a probe may take before another call probes as well.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.limits.patience_ms = ms(patience);
        self
    }

    /// The label of the backend, for errors.
    #[must_use]
    pub const fn backend(mut self, label: &'static str) -> Self {
        self.backend = label;
        self
    }

    /// Takes the time from here.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    fn admit(&self) -> Result<Pass<'_>> {
        let now = self.clock.now();
        match self.change(|circuit| circuit.admit(now, self.limits)) {
            Ok(epoch) => Ok(Pass { breaker: self, epoch, evidence: Evidence::None }),
            Err(until) => Err(self.refusal(until, now)),
        }
    }

    fn refusal(&self, until: TimestampMs, now: TimestampMs) -> EngineError {
        let open = CircuitOpen { until, wait_ms: until.since(now) };
        EngineError::Transport { backend: self.backend, retryable: true, source: Arc::new(Unsent::new(open)) }
    }

    fn settle(&self, epoch: u64, evidence: Evidence) {
        let now = self.clock.now();
        match self.change(|circuit| circuit.settle(epoch, evidence, now, self.limits)) {
            Some(State::Open { until }) => warn!(backend = self.backend, %until, "circuit opened"),
            Some(State::Closed { .. }) => info!(backend = self.backend, "circuit closed"),
            Some(State::Probing { .. }) | None => {}
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Circuit) -> T) -> T {
        change(&mut self.circuit.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, backend, circuit, .. } = self;
        let fields = (limits, backend, circuit);
        f.debug_tuple("CircuitBreaker").field(&fields).finish()
    }
}

impl Around for CircuitBreaker {
    fn around<'a, T, C>(&'a self, _op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        Box::pin(async move {
            let mut pass = self.admit()?;
            let answer = call.once().await;
            pass.evidence = Evidence::of(&answer);
            answer
        })
    }
}

/// Why a call was not made: the cause of the transport error that an open circuit answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("circuit is open until {until}, for another {wait_ms} ms: the call was not made")]
pub struct CircuitOpen {
    /// When the next call can be made, by this process, in milliseconds since the Unix epoch.
    pub until: TimestampMs,
    /// How long that was from the time of the call.
    pub wait_ms: u64,
}

impl CircuitOpen {
    /// The open circuit behind an error, if there is one.
    #[must_use]
    pub fn behind(error: &EngineError) -> Option<Self> {
        match error {
            EngineError::Transport { source, .. } => source.source()?.downcast_ref().copied(),
            EngineError::Contextual { source, .. } => Self::behind(source),
            _ => None,
        }
    }
}

/// A call under way; what it found out counts when it ends, and nothing when its caller gives it up.
struct Pass<'a> {
    breaker: &'a CircuitBreaker,
    epoch: u64,
    evidence: Evidence,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.breaker.settle(self.epoch, self.evidence);
    }
}

/// What a call tells about the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    Answers,
    Unreachable,
    None,
}

impl Evidence {
    fn of<T>(answer: &Result<T>) -> Self {
        match answer {
            Err(error) if transport(error).is_some() => Self::Unreachable,
            // A ceiling of this process says nothing about the store.
            Err(error) if error.code() == "resource_exhausted" => Self::None,
            _ => Self::Answers,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    failures: u32,
    cool_down_ms: u64,
    patience_ms: u64,
}

/// Calls of an earlier epoch no longer count: they began before the circuit opened or closed.
#[derive(Debug)]
struct Circuit {
    epoch: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: TimestampMs },
    Probing { until: TimestampMs },
}

impl Circuit {
    /// The epoch of the call, or until when there are none.
    fn admit(&mut self, now: TimestampMs, limits: Limits) -> Result<u64, TimestampMs> {
        let probing = State::Probing { until: now.plus(limits.patience_ms) };
        match self.state {
            State::Closed { .. } => {}
            State::Open { until } | State::Probing { until } if !until.is_due(now) => return Err(until),
            State::Open { .. } => self.enter(probing),
            State::Probing { .. } => self.state = probing,
        }
        Ok(self.epoch)
    }

    /// What a call found out; the state when the circuit opened or closed by it.
    fn settle(&mut self, epoch: u64, evidence: Evidence, now: TimestampMs, limits: Limits) -> Option<State> {
        if epoch != self.epoch {
            return None;
        }
        let open = State::Open { until: now.plus(limits.cool_down_ms) };
        match (self.state, evidence) {
            (State::Closed { failures }, Evidence::Unreachable) if failures + 1 < limits.failures => {
                self.state = State::Closed { failures: failures + 1 };
                return None;
            }
            (State::Closed { .. }, Evidence::Answers) => {
                self.state = State::Closed { failures: 0 };
                return None;
            }
            (State::Probing { .. }, Evidence::None) => {
                self.state = State::Probing { until: now };
                return None;
            }
            (State::Closed { .. }, Evidence::None) | (State::Open { .. }, _) => return None,
            (State::Closed { .. } | State::Probing { .. }, Evidence::Unreachable) => self.enter(open),
            (State::Probing { .. }, Evidence::Answers) => self.enter(State::Closed { failures: 0 }),
        }
        Some(self.state)
    }

    fn enter(&mut self, state: State) {
        self.epoch += 1;
        self.state = state;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};

    use ff_core::backend::claims::ClaimPolicy;
    use ff_core::backend::{Claims, Connection, EngineBackend, Inspection};
    use ff_core::capability::CapabilitySet;
    use ff_core::ids::{LaneId, WorkerId, WorkerInstanceId};
    use ff_core::partition::PartitionKey;
    use ff_engine::clock::ManualClock;

    use super::super::stack;
    use super::super::testing::{Faulty, HandMovedClock, Trouble, memory};
    use super::*;

    const START: TimestampMs = TimestampMs(1_000_000);

    struct Bench {
        clock: ManualClock,
        faulty: Faulty,
        backend: Arc<dyn EngineBackend>,
    }

    /// A breaker of the usual kind before a store that fails for a while.
    async fn bench(failing: u32) -> Bench {
        let (clock, faulty) = (ManualClock::at(START), Faulty::new(Trouble::NotSent, failing));
        let breaker = CircuitBreaker::new().clock(Arc::new(HandMovedClock(clock.clone())));
        let backend = stack(memory().await).circuit_breaker(breaker).layer(faulty.clone()).build();
        Bench { clock, faulty, backend }
    }

    impl Bench {
        async fn fail(&self, calls: u32) {
            for _ in 0..calls {
                let error = self.backend.ping().await.unwrap_err();
                assert_eq!(CircuitOpen::behind(&error), None);
            }
        }

        /// A claim that has begun to wait for work.
        fn waiting_claim(&self) -> BoxFuture<'static, ()> {
            let backend = Arc::clone(&self.backend);
            let mut waiting = Box::pin(async move {
                let (worker, process) = (WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap());
                let policy = ClaimPolicy { max_wait_ms: Some(60_000), ..ClaimPolicy::new(worker, process, 1_000) };
                let lane = LaneId::new("main").unwrap();
                backend.claim(&lane, &CapabilitySet::default(), policy).await.unwrap();
            });
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            waiting
        }

        /// The refusal of an open circuit.
        async fn refused(&self) -> EngineError {
            let made = self.faulty.made();
            let error = self.backend.ping().await.unwrap_err();
            assert_eq!(self.faulty.made(), made);
            error
        }
    }

    #[tokio::test]
    async fn five_transport_errors_in_a_row_open_it_for_half_a_minute() {
        let bench = bench(100).await;
        bench.fail(5).await;

        let error = bench.refused().await;

        let open = CircuitOpen { until: START.plus(30_000), wait_ms: 30_000 };
        assert_eq!(CircuitOpen::behind(&error), Some(open));
        assert_eq!(CircuitOpen::behind(&error.clone().with_context("ping")), Some(open));
        assert!(matches!(error, EngineError::Transport { backend: "memory", retryable: true, .. }), "{error:?}");
        assert!(error.to_string().contains("circuit is open until 1030000, for another 30000 ms"), "{error}");
        assert!(Unsent::is(&error));
        bench.clock.advance(29_999);
        bench.refused().await;
    }

    #[tokio::test]
    async fn an_answer_starts_the_count_anew_even_a_refusal() {
        let bench = bench(4).await;
        bench.fail(4).await;

        bench.backend.list_executions(&PartitionKey("nowhere".into()), None, 1).await.unwrap_err();
        bench.faulty.fail(4);
        bench.fail(4).await;

        bench.backend.ping().await.unwrap();
    }

    #[tokio::test]
    async fn one_call_probes_and_its_answer_closes_the_circuit() {
        let bench = bench(5).await;
        bench.fail(5).await;
        bench.clock.advance(30_000);

        bench.backend.ping().await.unwrap();

        bench.backend.ping().await.unwrap();
        bench.faulty.fail(5);
        bench.fail(5).await;
    }

    #[tokio::test]
    async fn a_probe_that_fails_opens_it_again() {
        let bench = bench(6).await;
        bench.fail(5).await;
        bench.clock.advance(30_000);
        bench.fail(1).await;

        let error = bench.refused().await;

        assert_eq!(CircuitOpen::behind(&error).unwrap().until, START.plus(60_000));
    }

    #[tokio::test]
    async fn a_probe_that_waits_for_work_does_not_keep_others_out() {
        let bench = bench(5).await;
        bench.fail(5).await;
        bench.clock.advance(30_000);

        let _waiting = bench.waiting_claim();
        bench.refused().await;
        bench.clock.advance(1_000);
        bench.backend.ping().await.unwrap();

        bench.backend.ping().await.unwrap();
    }

    #[tokio::test]
    async fn a_probe_that_its_caller_gives_up_leaves_the_place_to_the_next() {
        let bench = bench(5).await;
        bench.fail(5).await;
        bench.clock.advance(30_000);
        let waiting = bench.waiting_claim();

        drop(waiting);

        bench.backend.ping().await.unwrap();
    }

    #[test]
    fn calls_of_an_earlier_epoch_do_not_count() {
        let limits = Limits { failures: 1, cool_down_ms: 10, patience_ms: 1 };
        let mut circuit = Circuit { epoch: 0, state: State::Closed { failures: 0 } };
        let (first, second) = (circuit.admit(START, limits).unwrap(), circuit.admit(START, limits).unwrap());
        let open = State::Open { until: START.plus(10) };
        assert_eq!(circuit.settle(first, Evidence::Unreachable, START, limits), Some(open));

        assert_eq!(circuit.settle(second, Evidence::Answers, START, limits), None);

        assert_eq!(circuit.state, open);
    }

    #[test]
    fn a_ceiling_of_this_process_is_no_evidence() {
        let exhausted = EngineError::ResourceExhausted { pool: "streams", max: 1, retry_after_ms: None };
        assert_eq!(Evidence::of::<()>(&Err(exhausted)), Evidence::None);
    }
}
