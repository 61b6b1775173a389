//! Who waits while the server goes away waits on, and gets what it waits for when it is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ff_core::Result;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::{Attempts, EngineBackend, Ingress, Inspection};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use libtest_mimic::Failed;

use super::Ground;
use crate::journal::caller::is_open;
use crate::site::{Site, finish};

/// As long as a call may wait.
const WAIT_MS: u64 = 30_000;

/// How long news may take after the fault.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for work, and for the end of work.
const WAITS: usize = 2;

async fn claim(backend: &dyn EngineBackend, lane: &str, instance: &str) -> Result<Option<Handle>> {
    let policy = ClaimPolicy::new(WorkerId::new("waits")?, WorkerInstanceId::new(instance)?, 60_000);
    let policy = ClaimPolicy { max_wait_ms: Some(WAIT_MS), ..policy };
    backend.claim(&LaneId::new(lane)?, &CapabilitySet::default(), policy).await
}

fn submission(lane: &str) -> Result<CreateExecutionArgs> {
    Ok(CreateExecutionArgs::new(None, Namespace::new("waits")?, LaneId::new(lane)?, "wait"))
}

/// Calls again after errors that allow it; counts them.
async fn patiently<T, F: Future<Output = Result<T>>>(errors: &AtomicUsize, mut call: impl FnMut() -> F) -> Result<T> {
    loop {
        match call().await {
            Err(error) if is_open(&error) => {
                errors.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => return done,
        }
    }
}

/// Has something go wrong while others wait; they wait on, and get what they wait for.
///
/// # Errors
/// When they do not.
#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub fn run<G: Ground>(
    name: &str,
    mut ground: G,
    fault: impl FnOnce(&mut G) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let site = ground.site();
    finish(async {
        let (here, there) = (Arc::new(site.open(None).await?), site.open(None).await?);
        let CreateExecutionResult::Created { execution_id, .. } = there.create_execution(submission("held")?).await?
        else {
            return Err("a new execution is a duplicate".into());
        };
        let held = claim(&there, "held", "there").await?.ok_or("there is work")?;
        let errors = Arc::new(AtomicUsize::new(0));
        let work = {
            let (here, errors) = (here.clone(), errors.clone());
            tokio::spawn(async move { patiently(&errors, || claim(&*here, "wanted", "here")).await })
        };
        let end = {
            let (here, errors) = (here.clone(), errors.clone());
            tokio::spawn(async move { patiently(&errors, || here.await_outcome(execution_id, WAIT_MS)).await })
        };
        ground.wait_until_still()?;
        fault(&mut ground)?;
        let calls = AtomicUsize::new(0);
        patiently(&calls, || there.complete(&held, None)).await?;
        let wanted = submission("wanted")?;
        patiently(&calls, || there.create_execution(wanted.clone())).await?;
        let began = Instant::now();
        let both = async { Ok::<_, Failed>((work.await??.is_some(), end.await??.is_some())) };
        let got = tokio::time::timeout(PATIENCE, both).await.map_err(|_| "who waits got nothing")??;
        let (errors, calls) = (errors.load(Ordering::Relaxed), calls.load(Ordering::Relaxed));
        println!(
            "{name}: {WAITS} waits were over {:?} after the news; they failed {errors} times, other calls {calls}",
            began.elapsed()
        );
        if got == (true, true) { Ok(()) } else { Err(format!("work and an end: {got:?}").into()) }
    })
}
