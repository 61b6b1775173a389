//! Behaviour around every operation of a backend: spans, metrics, rate limits, a circuit breaker, retries.
//!
//! Each is an [`Around`] that knows nothing of the others; [`stack`] puts them around a backend, from the outside in:
//!
//! ```
//! # use std::sync::Arc;
//! # use ff_core::backend::EngineBackend;
//! use ff_sdk::layers::{self, CircuitBreaker, Class, Rate, RateLimit, Retry};
//!
//! # fn layered(backend: Arc<dyn EngineBackend>) -> Arc<dyn EngineBackend> {
//! layers::stack(backend)
//!     .tracing()
//!     .metrics()
//!     .rate_limit(RateLimit::new().limit(Class::SUBMISSIONS, Rate::per_second(200)))
//!     .circuit_breaker(CircuitBreaker::new())
//!     .retry(Retry::new())
//!     .build()
//! # }
//! ```

mod circuit_breaker;
mod classes;
mod clock;
mod metrics;
mod rate_limit;
mod retry;
mod stack;
#[cfg(test)]
mod testing;
mod tracing;

pub use circuit_breaker::{CircuitBreaker, CircuitOpen};
pub use classes::{Class, class_of};
pub use clock::{Clock, SystemClock};
pub use metrics::Metrics;
pub use rate_limit::{Rate, RateLimit};
pub use retry::Retry;
pub use stack::{Stack, stack};
pub use tracing::Tracing;

use ff_core::EngineError;
#[cfg(doc)]
use ff_core::backend::layer::Around;

/// Whether the store could not be reached, and if so, whether the same call may succeed later.
fn transport(error: &EngineError) -> Option<bool> {
    match error {
        EngineError::Transport { retryable, .. } => Some(*retryable),
        EngineError::Contextual { source, .. } => transport(source),
        _ => None,
    }
}
