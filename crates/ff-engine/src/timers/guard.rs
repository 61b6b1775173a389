//! What one piece of work does wrong stays its own: a panic becomes a failure.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

/// Runs something; says why it failed, also if it panicked. What is shared with others is behind locks that outlive a panic.
pub(crate) async fn guarded<T, E: ToString>(work: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(out)) => Ok(out),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(format!("panicked: {}", message(&*panic))),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
