//! What a store leaves on its servers: whose keys, in which slots, byte for byte, and how much memory.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

mod content;
mod keys;
mod memory;
mod spread;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use ff_backend_valkey::redis::{Client, cmd};
use ff_backend_valkey::{ValkeyOptions, ValkeyStore};
use ff_core::backend::attempts::{CompleteManyItem, CompleteManyOutcome};
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionOutcome};
use ff_core::backend::{Attempts, Claims, Ingress};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::{Blob, TimestampMs};
use ff_engine::clock::ManualClock;
use ff_engine::{Engine, Settings};
use ff_test_servers::valkey::ValkeyServer;

/// Longer than any test.
const LEASE_MS: u64 = 600_000;

/// Executions that one call is about.
const BATCH: usize = 250;

fn lane() -> LaneId {
    LaneId::new("work").unwrap()
}

fn namespace() -> Namespace {
    Namespace::new("acme").unwrap()
}

fn submission() -> CreateExecutionArgs {
    CreateExecutionArgs::new(None, namespace(), lane(), "sort")
}

/// An engine of its own on a deployment, and the clock that it looks at.
async fn open(options: ValkeyOptions, settings: Settings) -> (Engine<ValkeyStore>, ManualClock) {
    let clock = ManualClock::at(TimestampMs(1_000_000));
    let store = ValkeyStore::connect(options.clock(Arc::new(clock.clone()))).await.unwrap();
    (Engine::open(store, settings).await.unwrap(), clock)
}

/// Submits so many executions with an input.
async fn submit(engine: &Engine<ValkeyStore>, count: usize, input: &[u8]) {
    for first in (0..count).step_by(BATCH) {
        let args = || CreateExecutionArgs { input_payload: Blob::from(input), ..submission() };
        let batch = (first..count.min(first + BATCH)).map(|_| args()).collect();
        for outcome in engine.create_executions(batch).await.unwrap() {
            assert!(matches!(outcome, CreateExecutionOutcome::Created { .. }), "{outcome:?}");
        }
    }
}

/// Takes some of what waits; nothing when nothing does.
async fn claim(engine: &Engine<ValkeyStore>) -> Vec<Handle> {
    let (worker, instance) = (WorkerId::new("w").unwrap(), WorkerInstanceId::new("w-1").unwrap());
    let policy = ClaimPolicy::new(worker, instance, LEASE_MS);
    engine.claim_many(&lane(), &CapabilitySet::default(), policy, u32::try_from(BATCH).unwrap()).await.unwrap()
}

/// Completes all that waits, with a result; says how many there were.
async fn finish(engine: &Engine<ValkeyStore>, result: &[u8]) -> usize {
    let mut finished = 0;
    loop {
        let handles = claim(engine).await;
        if handles.is_empty() {
            return finished;
        }
        finished += handles.len();
        let item = |handle| CompleteManyItem { handle, result_payload: Some(Blob::from(result)) };
        for outcome in engine.complete_many(handles.into_iter().map(item).collect()).await.unwrap() {
            assert_eq!(outcome, CompleteManyOutcome::Completed);
        }
    }
}

/// All keys of a server.
async fn keys(server: &ValkeyServer) -> Vec<Vec<u8>> {
    let mut connection = Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let (mut cursor, mut all) = (0_u64, Vec::new());
    loop {
        let mut scan = cmd("SCAN");
        let (next, found): (u64, Vec<Vec<u8>>) =
            scan.arg(cursor).arg("COUNT").arg(1_000).query_async(&mut connection).await.unwrap();
        all.extend(found);
        cursor = next;
        if cursor == 0 {
            all.sort();
            all.dedup();
            return all;
        }
    }
}

/// One of the numbers that a server tells about itself.
fn told(server: &ValkeyServer, section: &str, name: &str) -> u64 {
    let told = server.ask(&["INFO", section]).unwrap();
    let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {told}"))
}
