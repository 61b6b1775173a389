//! A process dies with what it holds; another one that waits has it soon after the lease is over.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::{Attempts, EngineBackend, Ingress, Leases};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::{Blob, Result};
use ff_engine::{TimerOptions, Timers};
use libtest_mimic::Failed;

use super::Orders;
use crate::seal::Seal;
use crate::site::{Site, command, finish};

/// How long a lease lasts that nobody renews.
const LEASE: Duration = Duration::from_secs(2);

/// How much longer it may take until somebody else has the work.
const AFTER_LEASE_MAX: Duration = Duration::from_secs(1);

/// How often the owner renews.
const RENEW_EVERY: Duration = Duration::from_millis(200);

fn lane() -> LaneId {
    LaneId::new("orphans").expect("a lane")
}

async fn claim(backend: &dyn EngineBackend, instance: &str) -> Result<Option<Handle>> {
    let lease_ms = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
    let policy = ClaimPolicy::new(WorkerId::new("orphans")?, WorkerInstanceId::new(instance)?, lease_ms);
    backend.claim(&lane(), &CapabilitySet::default(), ClaimPolicy { max_wait_ms: Some(30_000), ..policy }).await
}

/// Claims, says so, and renews until it is killed.
pub(super) async fn hold(site: &impl Site) {
    let backend = site.open(None).await.expect("the store opens");
    let handle = claim(&backend, "first").await.expect("a claim").expect("there is work");
    let mut out = std::io::stdout();
    writeln!(out, "holds").and_then(|()| out.flush()).expect("somebody listens");
    loop {
        backend.renew(&handle).await.expect("a renewal");
        tokio::time::sleep(RENEW_EVERY).await;
    }
}

/// Lets a process die, and waits for what it held.
///
/// # Errors
/// When that takes longer than it may.
#[allow(clippy::print_stdout, reason = "the figures are for people")]
pub fn run(site: impl Site) -> Result<(), Failed> {
    finish(async {
        let backend = Arc::new(site.open(None).await?);
        let timers = Timers::start(Arc::clone(&backend), TimerOptions::default());
        let args = CreateExecutionArgs::new(None, Namespace::new("orphans")?, lane(), "orphan");
        backend.create_execution(args).await?;
        let mut owner = command(&Orders::Hold { site })?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut told = BufReader::new(owner.stdout.take().ok_or("no pipe")?).lines();
        told.next().ok_or("the owner ended")??;
        let waiting = {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { claim(&*backend, "second").await })
        };
        // Longer than a lease: it lives on renewals.
        tokio::time::sleep(LEASE + Duration::from_millis(fastrand::u64(..300))).await;
        let was_too_early = waiting.is_finished();
        owner.kill()?;
        let died = Instant::now();
        owner.wait()?;
        let handle = waiting.await??.ok_or("nobody took it over")?;
        let taken = died.elapsed();
        println!("taken over {taken:?} after its owner died; a lease lasts {LEASE:?}");
        if was_too_early || taken > LEASE + AFTER_LEASE_MAX {
            return Err(format!("taken over {taken:?} after its owner died, before that: {was_too_early}").into());
        }
        let epoch = Seal::of(&backend).await.open(&handle).lease_epoch.0;
        if epoch < 2 {
            return Err(format!("it was taken over with epoch {epoch}").into());
        }
        backend.complete(&handle, Some(Blob::from("at last"))).await?;
        timers.stop().await;
        Ok(())
    })
}
