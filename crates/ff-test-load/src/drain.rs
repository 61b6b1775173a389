//! Brings everything in a store to its end, in a time that has passed all leases.

use ff_core::backend::EngineBackend;
use ff_core::backend::attempts::CancelExecutionArgs;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::capability::CapabilitySet;
use ff_core::ids::{ExecutionId, LaneId, WorkerId, WorkerInstanceId};
use ff_core::state::PublicState;
use ff_core::{Blob, Result, TimestampMs};
use ff_engine::Engine;
use ff_engine::clock::{Clock, ManualClock, SystemClock};
use ff_engine::event::Event;
use ff_engine::records::Record;
use ff_engine::store::Inspect;

/// Long enough for every lease of the dead to end.
const LATER_MS: u64 = 3_600_000;

/// More rounds than any chain needs.
const ROUNDS_MAX: usize = 1_000;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A clock for the store that [`everything_ends`] is to drain.
#[must_use]
pub fn later() -> ManualClock {
    ManualClock::at(SystemClock::default().now().plus(LATER_MS))
}

/// Ends everything that is left in the store, whose time is that of the clock; looks at it at rest, and hands out what it holds.
///
/// # Errors
/// What does not end, and what is wrong at rest.
pub async fn everything_ends<S: Inspect>(
    backend: &Engine<S>,
    clock: &ManualClock,
    lanes: &[String],
) -> std::result::Result<(Vec<Record>, Vec<Event>), String> {
    finish(backend, lanes, clock).await.map_err(|error| format!("while draining: {error}"))?;
    let store = backend.store();
    let (records, events) = (store.records().await.map_err(told)?, store.event_log().await.map_err(told)?);
    for record in &records {
        if let Record::Execution(execution) = record
            && !execution.public_state().is_terminal()
        {
            return Err(format!("{} never ends: {execution:?}", execution.id));
        }
    }
    let violations = ff_sim::check_dump_at_rest(&records, &events, clock.now());
    if violations.is_empty() { Ok((records, events)) } else { Err(format!("violated at rest: {violations:#?}")) }
}

async fn finish<S: Inspect>(backend: &Engine<S>, lanes: &[String], clock: &ManualClock) -> Result<()> {
    let api: &dyn EngineBackend = backend;
    for record in backend.store().records().await? {
        if let Record::Execution(execution) = record
            && matches!(execution.public_state(), PublicState::Suspended | PublicState::Delayed)
        {
            cancel(api, execution.id).await?;
        }
    }
    let mut is_idle = false;
    for _ in 0..ROUNDS_MAX {
        let mut done = backend.run_due(TimestampMs(i64::MAX), 1_000).await?.handled;
        for lane in lanes {
            done += work(api, lane).await?;
        }
        if done == 0 && is_idle {
            return Ok(());
        }
        // What is looked at once a second has its turn before everything counts as idle.
        is_idle = done == 0;
        clock.advance(2_000);
    }
    Ok(())
}

async fn cancel(backend: &dyn EngineBackend, id: ExecutionId) -> Result<()> {
    let reason = "the test is over".to_owned();
    let args = CancelExecutionArgs { execution_id: id, reason, source: Default::default(), fence: Default::default() };
    backend.cancel_execution(args).await.map(drop)
}

async fn work(backend: &dyn EngineBackend, lane: &str) -> Result<usize> {
    let lane = LaneId::new(lane)?;
    let policy = ClaimPolicy::new(WorkerId::new("last")?, WorkerInstanceId::new("last-1")?, 60_000);
    let mut done = 0;
    while let Some(handle) = backend.claim(&lane, &CapabilitySet::default(), policy.clone()).await? {
        backend.complete(&handle, Some(Blob::from("at last"))).await?;
        done += 1;
    }
    Ok(done)
}
