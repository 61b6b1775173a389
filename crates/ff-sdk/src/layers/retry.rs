//! Makes calls again whose transport failed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::tracing::debug;
use ff_core::backend::layer::{Around, BoxFuture, Call, Unsent};
use ff_core::{EngineError, Result, TimestampMs};

use super::clock::ms;
use super::{Clock, SystemClock, transport};

/// Makes a call again after a transport error that may pass, with growing pauses, until its budget is spent.
///
/// A call whose answer was lost may have had its effect, so it is made again only when a repetition is safe (see
/// [`layer::repeats`](ff_core::backend::layer::repeats)) or when the error says that nothing was sent. Every other error is
/// an answer and passes at once.
pub struct Retry {
    tries: u32,
    within_ms: u64,
    pause_ms: u64,
    pause_max_ms: u64,
    clock: Arc<dyn Clock>,
    random: Mutex<fastrand::Rng>,
}

impl Retry {
    /// Up to 5 tries within 10 seconds, with pauses from 50 milliseconds to 2 seconds.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tries: 5,
            within_ms: 10_000,
            pause_ms: 50,
            pause_max_ms: 2_000,
            clock: Arc::new(SystemClock::default()),
            random: Mutex::new(fastrand::Rng::new()),
        }
    }

    /// How often a call is made at most, the first time included.
    #[must_use]
    pub const fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// How long after the first failure a call may be made again. A long wait for work that breaks off in the end costs
    /// nothing of it.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within_ms = ms(within);
        self
    }

    /// The first pause and the longest one; each is twice the one before, less up to a half by chance.
    #[must_use]
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        (self.pause_ms, self.pause_max_ms) = (ms(first), ms(longest));
        self
    }

    /// Takes the time from here.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the pauses repeatable.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.random = Mutex::new(fastrand::Rng::with_seed(seed));
        self
    }

    /// How long to pause after so many failed tries.
    fn pause(&self, failed: u32) -> Duration {
        let doubled = self.pause_ms.saturating_mul(1 << (failed - 1).min(32)).min(self.pause_max_ms);
        let spread = self.random.lock().unwrap_or_else(PoisonError::into_inner).u64(0..=doubled / 2);
        Duration::from_millis(doubled - spread)
    }

    /// The pause before the next try, if there is one.
    fn next(&self, failed: u32, since: TimestampMs) -> Option<Duration> {
        let pause = self.pause(failed);
        let spent = self.clock.now().since(since).saturating_add(ms(pause));
        (failed < self.tries && spent <= self.within_ms).then_some(pause)
    }

    async fn run<'a, T, C: Call<'a, T>>(&self, op: &'static str, call: C) -> Result<T> {
        let (mut failed, mut since) = (0, None);
        loop {
            let error = match call.again().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if transport(&error) != Some(true) || !(call.is_safe_to_repeat() || Unsent::is(&error)) {
                return Err(error);
            }
            failed += 1;
            let since = *since.get_or_insert_with(|| self.clock.now());
            let Some(pause) = self.next(failed, since) else { return Err(given_up(error, failed)) };
            debug!(op, failed, pause_ms = ms(pause), %error, "call will be made again");
            self.clock.sleep(pause).await;
        }
    }
}

fn given_up(error: EngineError, failed: u32) -> EngineError {
    if failed > 1 { error.with_context(format!("given up after {failed} tries")) } else { error }
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tries, within_ms, pause_ms, pause_max_ms, .. } = self;
        f.debug_struct("Retry")
            .field("tries", tries)
            .field("within_ms", within_ms)
            .field("pause_ms", pause_ms)
            .field("pause_max_ms", pause_max_ms)
            .finish()
    }
}

impl Around for Retry {
    fn around<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        Box::pin(self.run(op, call))
    }
}

#[cfg(test)]
mod tests {
    use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
    use ff_core::backend::{Connection, EngineBackend, Ingress};
    use ff_core::ids::{LaneId, Namespace};
    use ff_core::partition::PartitionKey;

    use super::super::stack;
    use super::super::testing::{Faulty, JumpingClock, Trouble, memory};
    use super::*;

    fn patient(clock: &Arc<JumpingClock>) -> Retry {
        Retry::new().clock(Arc::clone(clock) as Arc<dyn Clock>).seed(1)
    }

    async fn retrying(faulty: &Faulty) -> Arc<dyn EngineBackend> {
        stack(memory().await).retry(patient(&Arc::default())).layer(faulty.clone()).build()
    }

    fn submission() -> CreateExecutionArgs {
        CreateExecutionArgs::new(None, Namespace::new("acme").unwrap(), LaneId::new("main").unwrap(), "mail")
    }

    async fn executions(backend: &dyn EngineBackend) -> usize {
        let mut found = 0;
        for partition in 0..256 {
            let partition = PartitionKey(format!("{{fp:{partition}}}"));
            found += backend.list_executions(&partition, None, 100).await.unwrap().executions.len();
        }
        found
    }

    #[tokio::test]
    async fn a_read_is_made_again_until_it_succeeds() {
        let faulty = Faulty::new(Trouble::AnswerLost, 4);

        retrying(&faulty).await.ping().await.unwrap();

        assert_eq!(faulty.made(), 5);
    }

    #[tokio::test]
    async fn a_call_that_keeps_failing_says_how_often_it_was_tried() {
        let faulty = Faulty::new(Trouble::NotSent, 100);

        let error = retrying(&faulty).await.ping().await.unwrap_err();

        assert_eq!(faulty.made(), 5);
        assert_eq!(error.code(), "transport");
        assert!(error.to_string().starts_with("given up after 5 tries: "), "{error}");
    }

    #[tokio::test]
    async fn a_submission_with_a_key_is_made_again_and_happens_once() {
        let faulty = Faulty::new(Trouble::AnswerLost, 1);
        let backend = retrying(&faulty).await;

        let args = CreateExecutionArgs { idempotency_key: Some("once".into()), ..submission() };
        let answer = backend.create_execution(args).await.unwrap();

        assert!(matches!(answer, CreateExecutionResult::Duplicate { .. }), "{answer:?}");
        assert_eq!(executions(&*backend).await, 1);
    }

    #[tokio::test]
    async fn a_submission_without_a_name_whose_answer_is_lost_is_not_made_again() {
        let faulty = Faulty::new(Trouble::AnswerLost, 1);
        let backend = retrying(&faulty).await;

        backend.create_execution(submission()).await.unwrap_err();

        assert_eq!(faulty.made(), 1);
        assert_eq!(executions(&*backend).await, 1);
    }

    #[tokio::test]
    async fn whatever_was_not_sent_is_made_again() {
        let faulty = Faulty::new(Trouble::NotSent, 2);
        let backend = retrying(&faulty).await;

        backend.create_execution(submission()).await.unwrap();

        assert_eq!(faulty.made(), 3);
        assert_eq!(executions(&*backend).await, 1);
    }

    #[tokio::test]
    async fn answers_and_hopeless_errors_pass_at_once() {
        let faulty = Faulty::new(Trouble::Hopeless, 1);
        let backend = retrying(&faulty).await;

        backend.ping().await.unwrap_err();
        let refusal = backend.list_executions(&PartitionKey("nowhere".into()), None, 1).await.unwrap_err();

        assert_eq!(refusal.code(), "invalid_input");
        assert_eq!(faulty.made(), 2);
    }

    #[tokio::test]
    async fn pauses_double_up_to_the_longest_and_lose_up_to_a_half() {
        let (clock, faulty) = (Arc::<JumpingClock>::default(), Faulty::new(Trouble::NotSent, 100));
        let retry = patient(&clock).tries(7).pauses(Duration::from_millis(100), Duration::from_millis(1_000));

        stack(memory().await).retry(retry).layer(faulty).build().ping().await.unwrap_err();

        let naps: Vec<_> = clock.naps().into_iter().map(ms).collect();
        for (nap, most) in naps.iter().zip([100, 200, 400, 800, 1_000, 1_000]) {
            assert!((most / 2..=most).contains(nap), "{nap} of {most}");
        }
        assert_eq!(naps.len(), 6);
    }

    #[tokio::test]
    async fn time_runs_out_before_the_tries_do() {
        let (clock, faulty) = (Arc::<JumpingClock>::default(), Faulty::new(Trouble::NotSent, 100));
        let second = Duration::from_secs(1);
        let retry = patient(&clock).tries(1_000).pauses(second, second).within(3 * second);

        stack(memory().await).retry(retry).layer(faulty.clone()).build().ping().await.unwrap_err();

        let spent: Duration = clock.naps().into_iter().sum();
        assert!((2 * second..=3 * second).contains(&spent), "{spent:?}");
        assert_eq!(faulty.made() as usize, clock.naps().len() + 1);
    }
}
