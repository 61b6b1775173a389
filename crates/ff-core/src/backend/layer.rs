//! Layers: behaviour wrapped around every operation of a backend.
//!
//! Each facet forwards itself beside its trait with `forward!`, which also says what may be repeated. The lints refuse a
//! facet with an operation that is not forwarded.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{EngineError, Result};
use crate::words::words;

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

words! {
    /// Whether a call whose answer was lost may be made again.
    pub enum Repeat {
        /// Always: a repetition changes nothing more, and answers as before or says that it happened before.
        Safe = "safe",
        /// When its arguments name what it does, by a key or an id, so that the backend recognises it.
        SafeIfNamed = "safe_if_named",
        /// Only when it surely did not reach the backend.
        OnlyIfUnsent = "only_if_unsent",
    }
}

/// One call of the wrapped backend, not yet made.
pub trait Call<'a, T>: Send + Sync + 'a {
    /// Makes it; for layers that never make it again.
    fn once(self) -> BoxFuture<'a, Result<T>>;

    /// Makes it with a copy of its arguments, so that it can be made again.
    fn again(&self) -> BoxFuture<'a, Result<T>>;

    /// Whether it may be made again although it may have had its effect: [`Repeat`] for these arguments.
    fn is_safe_to_repeat(&self) -> bool;
}

/// What a layer does around one call.
pub trait Around: Send + Sync + 'static {
    /// Makes `call`, the operation `op` of the wrapped backend, as often as it likes; sees what came of it.
    fn around<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>;

    /// The same for an operation that answers with data, for layers that look into answers.
    fn around_answer<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Serialize + Send + 'a,
        C: Call<'a, T>,
    {
        self.around(op, call)
    }

    /// Sees a call that neither waits nor fails.
    fn note(&self, op: &'static str) {
        let _ = op;
    }
}

/// A backend inside a layer. The backend may be an `Arc<dyn EngineBackend>`, so stacks can be built at run time.
#[derive(Clone, Debug)]
pub struct Layered<B, L> {
    /// The wrapped backend.
    pub inner: B,
    /// What surrounds it.
    pub layer: L,
}

/// A transport failure before anything left the process. Whoever made the call may make it again.
#[derive(Clone, Debug)]
pub struct Unsent(Arc<dyn std::error::Error + Send + Sync>);

impl Unsent {
    /// Marks a failure as one that the backend never heard of.
    pub fn new(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(cause))
    }

    /// Whether an error is a transport failure that was marked so.
    #[must_use]
    pub fn is(error: &EngineError) -> bool {
        match error {
            EngineError::Transport { source, .. } => source.is::<Self>(),
            EngineError::Contextual { source, .. } => Self::is(source),
            _ => false,
        }
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Unsent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// Every operation of the contract and whether it may be repeated, in the order of the facets.
pub fn operations() -> impl Iterator<Item = (&'static str, Repeat)> {
    use super::*;
    let facets = [
        ingress::REPEATS,
        claims::REPEATS,
        attempts::REPEATS,
        leases::REPEATS,
        suspension::REPEATS,
        signals::REPEATS,
        flows::REPEATS,
        dependencies::REPEATS,
        budgets::REPEATS,
        quotas::REPEATS,
        streams::REPEATS,
        inspection::REPEATS,
        workers::REPEATS,
        subscriptions::REPEATS,
        maintenance::REPEATS,
        connection::REPEATS,
    ];
    facets.into_iter().flatten().copied()
}

/// Whether the operation of this name may be repeated; nothing for a name that is no operation.
#[must_use]
pub fn repeats(op: &str) -> Option<Repeat> {
    operations().find_map(|(name, repeat)| (name == op).then_some(repeat))
}

/// A call as its arguments and a way to make it.
pub(super) struct Forwarded<'a, A, F> {
    safe: bool,
    args: A,
    make: F,
    lifetime: PhantomData<&'a ()>,
}

impl<'a, A, F> Forwarded<'a, A, F> {
    pub(super) fn new<T>(safe: bool, args: A, make: F) -> Self
    where
        F: Fn(A) -> BoxFuture<'a, Result<T>>,
    {
        Self { safe, args, make, lifetime: PhantomData }
    }
}

impl<'a, T, A, F> Call<'a, T> for Forwarded<'a, A, F>
where
    A: Clone + Send + Sync + 'a,
    F: Fn(A) -> BoxFuture<'a, Result<T>> + Send + Sync + 'a,
{
    fn once(self) -> BoxFuture<'a, Result<T>> {
        (self.make)(self.args)
    }

    fn again(&self) -> BoxFuture<'a, Result<T>> {
        (self.make)(self.args.clone())
    }

    fn is_safe_to_repeat(&self) -> bool {
        self.safe
    }
}

/// Whether a call with the arguments at hand may be repeated.
macro_rules! is_safe {
    (Safe) => {
        true
    };
    (SafeIfNamed($named:expr)) => {
        $named
    };
    (OnlyIfUnsent) => {
        false
    };
}
pub(super) use is_safe;

/// Forwards a facet through layers and shared pointers, and tables which of its operations may be repeated.
///
/// A line is `operation(argument: Type, …) -> Answer => Repeat;`, where `Repeat` is `Safe`, `SafeIfNamed(condition)`
/// or `OnlyIfUnsent`.
macro_rules! forward {
    (
        $facet:ident through $around:ident $(noting { $($note:ident() -> $noted:ty;)+ })?,
        $($op:ident($($arg:ident: $type:ty),*) -> $answer:ty => $repeat:ident $(($named:expr))?;)+
    ) => {
        pub(crate) const REPEATS: &[(&str, $crate::backend::layer::Repeat)] = &[
            $($((stringify!($note), $crate::backend::layer::Repeat::Safe),)+)?
            $((stringify!($op), $crate::backend::layer::Repeat::$repeat),)+
        ];

        #[async_trait::async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<B: $facet, L: $crate::backend::layer::Around> $facet for $crate::backend::layer::Layered<B, L> {
            $($(fn $note(&self) -> $noted {
                self.layer.note(stringify!($note));
                self.inner.$note()
            })+)?

            $(async fn $op(&self, $($arg: $type),*) -> $crate::error::Result<$answer> {
                let safe = $crate::backend::layer::is_safe!($repeat $(($named))?);
                let call = $crate::backend::layer::Forwarded::new(safe, ($($arg,)*), move |($($arg,)*)| {
                    self.inner.$op($($arg),*)
                });
                self.layer.$around(stringify!($op), call).await
            })+
        }

        #[async_trait::async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<B: $facet + ?Sized> $facet for std::sync::Arc<B> {
            $($(fn $note(&self) -> $noted {
                (**self).$note()
            })+)?

            $(async fn $op(&self, $($arg: $type),*) -> $crate::error::Result<$answer> {
                (**self).$op($($arg),*).await
            })+
        }
    };
    ($facet:ident, $($lines:tt)+) => {
        $crate::backend::layer::forward! { $facet through around_answer, $($lines)+ }
    };
}
pub(super) use forward;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::backend::EngineBackend;

    fn transport(source: impl std::error::Error + Send + Sync + 'static) -> EngineError {
        EngineError::Transport { backend: "test", retryable: true, source: Arc::new(source) }
    }

    #[test]
    fn a_layer_around_a_shared_backend_is_a_backend() {
        fn backend<B: EngineBackend>() {}
        backend::<Arc<dyn EngineBackend>>();
        backend::<Layered<Arc<dyn EngineBackend>, crate::backend::inspection::forwarding::Recorder>>();
    }

    #[test]
    fn every_operation_stands_in_the_table_once() {
        let names: BTreeSet<_> = operations().map(|(name, _)| name).collect();
        assert_eq!(names.len(), operations().count());
    }

    #[test]
    fn what_takes_work_or_appends_is_not_repeated() {
        for op in ["claim", "claim_many", "claim_for_worker", "append_frame", "create_waitpoint", "replay_execution"] {
            assert_eq!(repeats(op), Some(Repeat::OnlyIfUnsent), "{op}");
        }
        assert_eq!(repeats("create_execution"), Some(Repeat::SafeIfNamed));
        assert_eq!(repeats("renew"), Some(Repeat::Safe));
        assert_eq!(repeats("unheard_of"), None);
    }

    #[test]
    fn a_failure_is_unsent_only_when_it_says_so() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(Unsent::is(&transport(Unsent::new(refused()))));
        assert!(Unsent::is(&transport(Unsent::new(refused())).with_context("ping")));
        assert!(!Unsent::is(&transport(refused())));
        assert!(!Unsent::is(&EngineError::Unavailable { op: "ping" }));
    }
}
