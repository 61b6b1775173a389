//! Layers: behaviour wrapped around every operation of a backend.
//!
//! Each facet forwards itself beside its trait, so an operation that is not forwarded does not compile.

use std::future::Future;
use std::pin::Pin;

use serde::Serialize;

use crate::error::Result;

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a layer does around one call.
pub trait Around: Send + Sync + 'static {
    /// Runs `call`, the operation `op` of the wrapped backend; sees its answer.
    fn around<'a, T>(&'a self, op: &'static str, call: BoxFuture<'a, Result<T>>) -> BoxFuture<'a, Result<T>>
    where
        T: Serialize + Send + 'a;

    /// Sees that a subscription was opened or refused.
    fn around_subscription<'a, T>(
        &'a self,
        op: &'static str,
        call: BoxFuture<'a, Result<T>>,
    ) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a;

    /// Sees a call that neither waits nor fails.
    fn note(&self, op: &'static str);
}

/// A backend inside a layer.
#[derive(Clone, Debug)]
pub struct Layered<B, L> {
    /// The wrapped backend.
    pub inner: B,
    /// What surrounds it.
    pub layer: L,
}
