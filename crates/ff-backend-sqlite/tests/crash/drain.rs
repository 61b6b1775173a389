//! After all crashes of a file: every execution still comes to an end.

use std::sync::Arc;

use ff_backend_sqlite::{SqliteBackend, SqliteStore};
use ff_core::Blob;
use ff_core::backend::EngineBackend;
use ff_core::backend::attempts::CancelExecutionArgs;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::capability::CapabilitySet;
use ff_core::ids::{ExecutionId, LaneId, WorkerId, WorkerInstanceId};
use ff_core::state::PublicState;
use ff_core::{Result, TimestampMs};
use ff_engine::clock::{Clock, ManualClock, SystemClock};
use ff_engine::{Engine, Settings};

use crate::load::Orders;
use crate::model::Model;
use crate::verify::Found;

/// Long enough for every lease of the dead to end.
const LATER_MS: u64 = 3_600_000;

/// More rounds than any chain needs.
const ROUNDS_MAX: usize = 1_000;

/// Ends everything that is left in the file, and looks at it at rest.
pub(crate) fn everything_ends(orders: &Orders, model: &Model) -> std::result::Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let clock = ManualClock::at(SystemClock::default().now().plus(LATER_MS));
        let options = orders.options().clock(Arc::new(clock.clone()));
        let store = SqliteStore::open(options).await.map_err(|error| error.to_string())?;
        let backend = Engine::open(store, Settings::default()).await.map_err(|error| error.to_string())?;
        let api: &dyn EngineBackend = &backend;
        finish(&backend, model, &clock).await.map_err(|error| format!("while draining: {error}"))?;
        for id in model.executions.keys() {
            let state = api.read_execution_state(*id).await.map_err(|error| error.to_string())?;
            if !state.is_some_and(PublicState::is_terminal) {
                return Err(format!("{id} never ends: {state:?}, {:?}", api.explain(*id).await));
            }
        }
        Found::look(&backend).await?.is_at_rest(clock.now()).await
    })
}

async fn finish(backend: &SqliteBackend, model: &Model, clock: &ManualClock) -> Result<()> {
    let api: &dyn EngineBackend = backend;
    for id in model.executions.keys() {
        if let Some(PublicState::Suspended | PublicState::Delayed) = api.read_execution_state(*id).await? {
            cancel(api, *id).await?;
        }
    }
    let mut is_idle = false;
    for _ in 0..ROUNDS_MAX {
        let due = backend.run_due(TimestampMs(i64::MAX), 1_000).await?.handled;
        let worked = work(api, "lane-0").await? + work(api, "lane-1").await?;
        if due + worked == 0 && is_idle {
            return Ok(());
        }
        // What is looked at once a second has its turn before everything counts as idle.
        is_idle = due + worked == 0;
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
