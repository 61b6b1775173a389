//! Several processes that share a store, and what must be true of it when they are done.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ff_core::Result;
use ff_core::backend::EngineBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::capability::CapabilitySet;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_engine::store::Inspect;
use libtest_mimic::Failed;

use crate::mixed::report::Report;
use crate::mixed::{self, Shift, work_together};
use crate::site::{Site, finish, has_sound_indexes};
use crate::{drain, feed, owners};

/// That share a store.
pub const PROCESSES: usize = 4;

/// News must not take longer than this to reach another process, however busy the machine is.
const NEWS_MAX: Duration = Duration::from_secs(5);

/// Has four processes work on a store that may not exist yet, for `FF_LOAD_SECONDS`: no error but documented ones, nothing is owned twice,
/// everybody sees everything that happens, everything ends.
///
/// # Errors
/// What does not hold.
///
/// # Panics
/// When `FF_LOAD_SECONDS` is no number.
pub fn share<S: Site>(site: &S, command: impl Fn(Shift) -> Result<Command, Failed>) -> Result<(), Failed> {
    let seconds = std::env::var("FF_LOAD_SECONDS").map_or(5, |text| text.parse().expect("a number"));
    let shifts = (0..PROCESSES).map(|process| Shift { process, processes: PROCESSES, seconds });
    let reports = work_together(shifts.map(command).collect::<Result<_, _>>()?)?;
    for (process, report) in reports.iter().enumerate() {
        report.show(process);
    }
    finish(judge(site, &reports))
}

async fn judge<S: Site>(site: &S, reports: &[Report]) -> Result<(), Failed> {
    let clock = drain::later();
    let backend = site.open(Some(Arc::new(clock.clone()))).await?;
    let events = backend.store().event_log().await?;
    for report in reports {
        report.has_no_trouble()?;
        report.heard_news_within(NEWS_MAX)?;
        feed::saw_everything_once(&report.seen, &events)?;
    }
    owners::nothing_is_claimed_twice(reports.iter().flat_map(|report| &report.claims))?;
    let (_, events) = drain::everything_ends(&backend, &clock, &mixed::lanes(PROCESSES)).await?;
    owners::nothing_is_owned_twice(&events)?;
    Ok(has_sound_indexes(backend.store()).await?)
}

/// Has a reader miss an event, which must be noticed.
///
/// # Errors
/// When nobody notices.
pub fn a_gap_is_noticed(site: &impl Site) -> Result<(), Failed> {
    finish(async {
        let backend = site.open(None).await?;
        create(&backend, 3).await?;
        for number in 0..3 {
            if !claim(&backend, &format!("all-{number}"), 1_000).await? {
                return Err("there is nothing to claim".into());
            }
        }
        let events = backend.store().event_log().await?;
        let mut seen = feed::Reader::of(backend.store()).await?.next(backend.store()).await?;
        feed::saw_everything_once(&seen, &events)?;
        seen.pop().ok_or("nothing was seen")?;
        match feed::saw_everything_once(&seen, &events) {
            Ok(()) => Err("nobody noticed".into()),
            Err(_) => Ok(()),
        }
    })
}

fn lane() -> LaneId {
    LaneId::new("rest").expect("a lane")
}

/// Submits so many.
///
/// # Errors
/// Those of the store.
pub async fn create(backend: &dyn EngineBackend, many: usize) -> Result<()> {
    for _ in 0..many {
        backend.create_execution(CreateExecutionArgs::new(None, Namespace::new("rest")?, lane(), "rest")).await?;
    }
    Ok(())
}

/// Claims one of them; says whether there was any in time.
///
/// # Errors
/// Those of the store.
pub async fn claim(backend: &dyn EngineBackend, instance: &str, wait_ms: u64) -> Result<bool> {
    let policy = ClaimPolicy::new(WorkerId::new("rest")?, WorkerInstanceId::new(instance)?, 60_000);
    let policy = ClaimPolicy { max_wait_ms: Some(wait_ms), ..policy };
    Ok(backend.claim(&lane(), &CapabilitySet::default(), policy).await?.is_some())
}
