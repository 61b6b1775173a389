//! A loop that ends by a panic or an error is started again, after a pause that grows while it keeps ending.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use ff_core::Result;
use futures_util::FutureExt;
use tokio::time::Instant;

use super::meters;
use super::{Context, TimerLoop};
use crate::store::Store;

/// The first pause.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A loop that ran for so long begins with the first pause again.
const QUIET: Duration = Duration::from_secs(60);

/// Runs a loop until the timers are stopped; a loop that ends well was told to.
pub(super) async fn supervise<S, Running>(
    which: TimerLoop,
    context: Context<S>,
    run: impl Fn(Context<S>) -> Running + Send,
) where
    S: Store,
    Running: Future<Output = Result<()>> + Send,
{
    let mut pause = PAUSE_FIRST;
    while !context.is_stopping() {
        context.board.is_up(which);
        let began = Instant::now();
        let why = match AssertUnwindSafe(run(context.clone())).catch_unwind().await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", message(&*panic)),
        };
        if began.elapsed() >= QUIET {
            pause = PAUSE_FIRST;
        }
        // From half of the pause on, so that processes that lost the same server do not come back together.
        let jittered = pause.mul_f64(0.5 + context.engine.settings.entropy.factor() / 2.0);
        pause = (pause * 2).min(PAUSE_MAX);
        context.board.is_down(which, &why);
        meters::restarted(which, &why, u64::try_from(jittered.as_millis()).unwrap_or(u64::MAX));
        context.or_stop(tokio::time::sleep(jittered)).await;
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
