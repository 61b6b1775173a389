//! A loop that ends by a panic or an error is started again, after a pause that grows while it keeps ending.

use std::time::Duration;

use ff_core::Result;
use tokio::time::Instant;

use super::meters;
use super::{Context, TimerLoop};
use crate::store::Store;
use crate::timers::guard::guarded;

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
        let Err(why) = guarded(run(context.clone())).await else { return };
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
