//! Two stores on one file, as two processes have them: what they did together is what there was to do.

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

#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub(crate) fn run() -> Result<(), Failed> {
    finish(async {
        let directory = tempfile::tempdir()?;
        let clock = ManualClock::at(SystemClock::default().now());
        let options = SqliteOptions::file(directory.path().join("shared.db")).clock(Arc::new(clock.clone()));
        let (first, second) = (open(options.clone()).await, open(options).await);
        let due_at = clock.now().plus(1_000);
        let armed = (0..TIMERS).map(|n| CreateExecutionArgs { delay_until: Some(due_at), ..submission(n) });
        submit(&first, armed.collect()).await;
        let services = [&first, &second].map(|engine| Timers::start(Arc::clone(engine), TimerOptions::default()));
        for timers in &services {
            until_passed(timers, clock.now()).await?;
        }
        clock.advance(1_000);
        let handled = || services.each_ref().map(|timers| timers.health().handled);
        until("all delays are over", || handled().iter().sum::<u64>() >= u64::from(TIMERS)).await?;
        until_nothing_is_due(&first).await?;
        for timers in services {
            let health = timers.health();
            println!("handled {}, found {} done by the other", health.handled, health.elsewhere);
            if health.handled == 0 || health.handled == u64::from(TIMERS) || health.failing > 0 {
                return Err(format!("the work was not shared: {health:?}").into());
            }
            timers.stop().await;
        }
        all_are_eligible(&second).await
    })
}

async fn until_nothing_is_due(engine: &SqliteBackend) -> Result<(), Failed> {
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
        count if count == usize::from(TIMERS) => Ok(()),
        count => Err(format!("{count} are eligible").into()),
    }
}
