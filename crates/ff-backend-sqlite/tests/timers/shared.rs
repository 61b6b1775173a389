//! Two stores on one file, as two processes have them: what they did together is what there was to do.

use std::ops::Range;
use std::sync::Arc;

use ff_backend_sqlite::{SqliteBackend, SqliteOptions};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::state::EligibilityState;
use ff_engine::clock::{Clock, ManualClock, SystemClock};
use ff_engine::index::{Bounds, DueKind, Index};
use ff_engine::records::Record;
use ff_engine::store::{Inspect, Store};
use ff_engine::{TimerOptions, Timers};
use libtest_mimic::Failed;

use crate::{finish, open, submission, submit, until, until_passed};

const TIMERS: u16 = 1_000;

/// Armed after one of the two has ended.
const MORE: u16 = 100;

#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub(crate) fn run() -> Result<(), Failed> {
    finish(async {
        let directory = tempfile::tempdir()?;
        let clock = ManualClock::at(SystemClock::default().now());
        let options = SqliteOptions::file(directory.path().join("shared.db")).clock(Arc::new(clock.clone()));
        let (first, second) = (open(options.clone()).await, open(options).await);
        arm(&first, &clock, 0..TIMERS).await;
        let services = [&first, &second].map(|engine| Timers::start(Arc::clone(engine), TimerOptions::default()));
        for timers in &services {
            until_passed(timers, clock.now()).await?;
        }
        clock.advance(1_000);
        let handled = || services.iter().map(|timers| timers.health().handled).sum::<u64>();
        until("all delays are over", || handled() >= u64::from(TIMERS)).await?;
        nothing_is_due(&first).await?;
        if handled() != u64::from(TIMERS) {
            return Err(format!("{} of {TIMERS} were handled: some of them twice", handled()).into());
        }
        for timers in &services {
            let health = timers.health();
            println!("handled {}, found {} done by the other", health.handled, health.elsewhere);
            if health.failing > 0 {
                return Err(format!("something failed: {health:?}").into());
            }
        }
        let [ended, left] = services;
        ended.stop().await;
        arm(&first, &clock, TIMERS..TIMERS + MORE).await;
        let before = left.health().handled;
        clock.advance(1_000);
        until("the other one does it alone", || left.health().handled == before + u64::from(MORE)).await?;
        left.stop().await;
        all_are_eligible(&second).await
    })
}

/// Delays of a second.
async fn arm(engine: &Arc<SqliteBackend>, clock: &ManualClock, numbers: Range<u16>) {
    let due_at = clock.now().plus(1_000);
    let armed = numbers.map(|n| CreateExecutionArgs { delay_until: Some(due_at), ..submission(n) });
    submit(engine, armed.collect()).await;
}

async fn nothing_is_due(engine: &SqliteBackend) -> Result<(), Failed> {
    let due = [Index::Due(DueKind::Delay)];
    match engine.store().list(&due, &Bounds::first(1)).await? {
        left if left.is_empty() => Ok(()),
        left => Err(format!("counted and still due: {left:?}").into()),
    }
}

async fn all_are_eligible(engine: &SqliteBackend) -> Result<(), Failed> {
    let records = engine.store().records().await?;
    let eligible = records.iter().filter(|record| {
        matches!(record, Record::Execution(it) if it.state().eligibility_state == EligibilityState::EligibleNow)
    });
    match eligible.count() {
        count if count == usize::from(TIMERS + MORE) => Ok(()),
        count => Err(format!("{count} are eligible").into()),
    }
}
