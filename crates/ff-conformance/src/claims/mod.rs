//! Work is found, reserved and taken, or held back.

mod admission;
mod blocking;
mod consume;
mod direct;
mod flows;
mod kinds;
mod operator;
mod queue;
mod reclaim;
mod reserve;
mod resume;
mod routing;
mod waiting;

use std::collections::BTreeSet;

use ff_core::Result;
use ff_core::backend::claims::{ClaimExecutionArgs, ClaimPolicy, Grant, IssueClaimGrantArgs};
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::backend::inspection::ExecutionInfo;
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{AttemptId, AttemptIndex, ExecutionId, LeaseId};
use ff_core::policy::{ExecutionPolicy, RoutingRequirements};

use crate::Case;
use crate::world::{LEASE_MS, World, worker};

pub(crate) fn cases() -> Vec<Case> {
    [
        admission::cases(),
        blocking::cases(),
        consume::cases(),
        direct::cases(),
        flows::cases(),
        kinds::cases(),
        operator::cases(),
        queue::cases(),
        reclaim::cases(),
        reserve::cases(),
        resume::cases(),
        routing::cases(),
        waiting::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn policy(name: &str) -> ClaimPolicy {
    let (worker_id, instance) = worker(name);
    ClaimPolicy::new(worker_id, instance, LEASE_MS)
}

/// A policy that requires capabilities.
fn requiring(tokens: &[&str]) -> ExecutionPolicy {
    let required_capabilities = tokens.iter().map(|token| (*token).to_owned()).collect();
    let routing = RoutingRequirements { required_capabilities };
    ExecutionPolicy { routing_requirements: Some(routing), ..ExecutionPolicy::default() }
}

/// Claims as a worker that offers capabilities.
async fn claim_offering(world: &World, tokens: &[&str]) -> Result<Option<Handle>> {
    let offered = CapabilitySet::new(tokens.iter().copied());
    world.backend.claim(&world.lane(), &offered, policy("worker-a")).await
}

/// A submission of a kind.
fn of_kind(world: &World, kind: &str) -> CreateExecutionArgs {
    CreateExecutionArgs { execution_kind: kind.to_owned(), ..world.submission() }
}

/// Who takes only some kinds.
fn taking(kinds: &[&str]) -> ClaimPolicy {
    ClaimPolicy { kinds: Some(set(kinds)), ..policy("worker-a") }
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Claims as a worker that takes only some kinds.
async fn claim_kinds(world: &World, kinds: &[&str]) -> Option<Handle> {
    world.backend.claim(&world.lane(), &CapabilitySet::default(), taking(kinds)).await.unwrap()
}

async fn info(world: &World, id: ExecutionId) -> ExecutionInfo {
    world.backend.read_execution_info(id).await.unwrap().expect("the execution exists")
}

/// A request for a claim grant by the usual worker.
fn grant_args(world: &World, execution_id: ExecutionId) -> IssueClaimGrantArgs {
    let (worker_id, worker_instance_id) = world.worker();
    IssueClaimGrantArgs {
        execution_id,
        lane_id: world.lane(),
        worker_id,
        worker_instance_id,
        worker_capabilities: [].into(),
        grant_ttl_ms: 5000,
    }
}

/// The usual worker's attempt to consume its grant.
fn claim_args(world: &World, execution_id: ExecutionId) -> ClaimExecutionArgs {
    let (worker_id, worker_instance_id) = world.worker();
    ClaimExecutionArgs {
        execution_id,
        worker_id,
        worker_instance_id,
        lane_id: world.lane(),
        lease_id: LeaseId::from_uuid(world.uuid()),
        lease_ttl_ms: LEASE_MS,
        attempt_id: AttemptId::from_uuid(world.uuid()),
        expected_attempt_index: AttemptIndex(0),
        attempt_timeout_ms: None,
        execution_deadline_at: None,
    }
}

/// A claimable execution whose attempt was interrupted.
async fn interrupted(world: &World) -> ExecutionId {
    let (id, handle) = world.claim_one().await;
    world.backend.delay(&handle, world.now().plus(10)).await.unwrap();
    world.pass(10).await;
    id
}

fn assert_grant_names(grant: &Grant, world: &World, id: ExecutionId) {
    assert_eq!(grant.execution_id, id);
    assert_eq!(grant.lane_id, world.lane());
    assert_eq!(grant.partition_key, id.partition().into());
}
