//! What a process costs that has nothing to do.

use std::sync::Arc;
use std::time::Duration;

use ff_backend_sqlite::SqliteOptions;
use ff_core::TimestampMs;
use ff_engine::clock::{Clock, ManualClock, SystemClock};
use ff_engine::{TimerOptions, Timers};
use libtest_mimic::Failed;

use crate::{finish, open, until, until_passed};

/// Statements per minute that count as none: two sweeps over the kinds of due work, and one over what can go.
const PER_MINUTE_MAX: u64 = 150;

/// How long a process is watched that should do nothing at all.
const WINDOW: Duration = Duration::from_secs(2);

#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub(crate) fn run() -> Result<(), Failed> {
    finish(async {
        let directory = tempfile::tempdir()?;
        let clock = ManualClock::at(SystemClock::default().now());
        let options = SqliteOptions::file(directory.path().join("idle.db")).clock(Arc::new(clock.clone()));
        let engine = open(options.count_statements(true)).await;
        let statements = || engine.store().statements().expect("they are counted");
        let timers = Timers::start(Arc::clone(&engine), TimerOptions::default());
        until_passed(&timers, clock.now()).await?;
        until("a first cleanup", || timers.health().cleanup.last_pass.is_some()).await?;

        // While no time passes for the timers: whatever is run now is run all the time.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = statements();
        tokio::time::sleep(WINDOW).await;
        let polled = (statements() - before) * 60 / WINDOW.as_secs();

        let swept = one_minute(&clock, &timers, statements).await?;
        println!("an idle process: {swept} statements per minute of the timers, {polled} besides");
        timers.stop().await;
        if swept + polled > PER_MINUTE_MAX {
            return Err(format!("{swept} + {polled} statements per minute").into());
        }
        Ok(())
    })
}

/// Lets a minute pass for the timers; says how many statements that takes.
async fn one_minute(clock: &ManualClock, timers: &Timers, statements: impl Fn() -> u64) -> Result<u64, String> {
    let (began, before) = (clock.now(), statements());
    for sweep in 1..=2 {
        let at = TimestampMs(began.0 + sweep * 30_000);
        clock.set(at);
        until_passed(timers, at).await?;
    }
    let at = clock.now();
    until("a cleanup", || timers.health().cleanup.last_pass.is_some_and(|passed| passed >= at)).await?;
    Ok(statements() - before)
}
