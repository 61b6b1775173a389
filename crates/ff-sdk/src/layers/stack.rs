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
