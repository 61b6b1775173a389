//! Layers put around a backend at run time.

use std::sync::Arc;

use ff_core::backend::EngineBackend;
use ff_core::backend::layer::{Around, Layered};

use super::{CircuitBreaker, Metrics, RateLimit, Retry, Tracing};

type Wrap = Box<dyn FnOnce(Arc<dyn EngineBackend>) -> Arc<dyn EngineBackend> + Send>;

/// Begins a stack of layers around `backend`. The first layer named is the outermost one.
pub fn stack(backend: Arc<dyn EngineBackend>) -> Stack {
    Stack { backend, layers: Vec::new() }
}

/// Layers to be put around a backend, from the outside in.
///
/// The order says what a layer sees: with `tracing` before `retry` a span covers all tries of a call, after it there is one
/// per try. A layer may be named more than once.
#[must_use = "a stack does nothing until it is built"]
pub struct Stack {
    backend: Arc<dyn EngineBackend>,
    layers: Vec<Wrap>,
}

impl Stack {
    /// A span per call.
    pub fn tracing(self) -> Self {
        let label = self.backend.backend_label();
        self.layer(Tracing::new(label))
    }

    /// A counter and a histogram of calls.
    pub fn metrics(self) -> Self {
        self.layer(Metrics::new())
    }

    /// Only so many calls per second and class.
    pub fn rate_limit(self, limits: RateLimit) -> Self {
        self.layer(limits)
    }

    /// No calls for a while after the store could not be reached several times in a row.
    pub fn circuit_breaker(self, breaker: CircuitBreaker) -> Self {
        let label = self.backend.backend_label();
        self.layer(breaker.backend(label))
    }

    /// Makes calls again that did not reach the store, or that may be repeated.
    pub fn retry(self, retry: Retry) -> Self {
        self.layer(retry)
    }

    /// Any other layer.
    pub fn layer(mut self, layer: impl Around) -> Self {
        self.layers.push(Box::new(|inner| Arc::new(Layered { inner, layer })));
        self
    }

    /// The backend inside all layers.
    #[must_use]
    pub fn build(self) -> Arc<dyn EngineBackend> {
        self.layers.into_iter().rev().fold(self.backend, |inner, wrap| wrap(inner))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ff_core::backend::subscriptions::ScannerFilter;
    use ff_core::backend::{Connection, Subscriptions};
    use ff_core::cursor::EventCursor;
    use ff_engine::Engine;
    use ff_engine::memory::MemoryStore;

    use super::super::testing::{Faulty, JumpingClock, Trouble, memory};
    use super::*;

    fn quick() -> Retry {
        Retry::new().clock(Arc::<JumpingClock>::default())
    }

    #[tokio::test]
    async fn the_layer_named_first_is_the_outermost() {
        let faulty = Faulty::new(Trouble::NotSent, 10);
        let breaker = || CircuitBreaker::new().failures(2).cool_down(Duration::from_secs(3_600));

        let inside = stack(memory().await).retry(quick()).circuit_breaker(breaker()).layer(faulty.clone()).build();
        inside.ping().await.unwrap_err();
        assert_eq!(faulty.made(), 2, "the circuit opened between the tries");

        let outside = stack(memory().await).circuit_breaker(breaker()).retry(quick()).layer(faulty.clone()).build();
        outside.ping().await.unwrap_err();
        assert_eq!(faulty.made(), 2 + 5, "all tries were one failure");
    }

    #[tokio::test]
    async fn subscriptions_pass_through_layers_too() {
        let faulty = Faulty::new(Trouble::NotSent, 2);
        let backend = stack(memory().await).tracing().metrics().retry(quick()).layer(faulty.clone()).build();

        assert!(backend.subscribe_completion(EventCursor::TAIL, &ScannerFilter::default()).await.is_ok());

        assert_eq!(faulty.made(), 3);
    }

    #[tokio::test]
    async fn a_stack_is_what_it_wraps() {
        let bare = memory().await;
        let backend = stack(Arc::clone(&bare))
            .tracing()
            .metrics()
            .rate_limit(RateLimit::new())
            .circuit_breaker(CircuitBreaker::new())
            .retry(Retry::new())
            .build();

        assert!(backend.as_any().is::<Engine<MemoryStore>>());
        assert_eq!(backend.capabilities(), bare.capabilities());
        assert_eq!(backend.backend_label(), "memory");
    }
}
