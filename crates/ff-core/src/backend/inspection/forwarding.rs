//! Checks that a facet's forwarder passes every operation through its layer. For tests only.

use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use crate::backend::layer::{Around, BoxFuture, Call};
use crate::error::Result;
use crate::ids::ExecutionId;

/// A layer that remembers what passed through it.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Vec<&'static str>>);

impl Recorder {
    /// What passed since the last call.
    pub(crate) fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }
}

impl Around for Recorder {
    fn around<'a, T, C>(&'a self, op: &'static str, call: C) -> BoxFuture<'a, Result<T>>
    where
        T: Send + 'a,
        C: Call<'a, T>,
    {
        self.note(op);
        call.once()
    }

    fn note(&self, op: &'static str) {
        self.0.lock().expect("not poisoned").push(op);
    }
}

/// The answer of a future that does not wait.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the future waits"),
    }
}

/// Some execution.
pub(crate) fn any_execution() -> ExecutionId {
    ExecutionId::new(1, uuid::Uuid::from_u128(7))
}

/// Calls each operation of a backend that has none through a layer: the layer and the refusal must both name it.
macro_rules! assert_forwards {
    ($bare:expr, $($op:ident($($arg:expr),* $(,)?)),+ $(,)?) => {{
        let layered = $crate::backend::layer::Layered {
            inner: $bare,
            layer: $crate::backend::inspection::forwarding::Recorder::default(),
        };
        $(
            let answer = $crate::backend::inspection::forwarding::ready(layered.$op($($arg),*));
            match answer {
                Err($crate::error::EngineError::Unavailable { op }) => assert_eq!(op, stringify!($op)),
                _ => panic!("{} was not refused", stringify!($op)),
            }
            assert_eq!(layered.layer.take(), [stringify!($op)]);
        )+
    }};
}
pub(crate) use assert_forwards;
