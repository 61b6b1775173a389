//! The world of one case: a backend of its own, and short ways to bring it into a state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ff_core::backend::EngineBackend;
use ff_core::backend::claims::ClaimPolicy;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::capability::CapabilitySet;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, FlowId, LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::partition::PartitionCounts;
use ff_core::policy::{ExecutionPolicy, PolicyDocument};
use ff_core::state::PublicState;
use ff_core::{Result, TimestampMs};
use uuid::Uuid;

use crate::harness::{Control, Damage};

/// How long leases last unless a case says otherwise.
pub(crate) const LEASE_MS: u64 = 30_000;

/// What a case works with.
pub struct World {
    /// The backend under test.
    pub backend: Arc<dyn EngineBackend>,
    control: Arc<dyn Control>,
    minted: AtomicU64,
}

impl World {
    pub(crate) fn new(backend: Arc<dyn EngineBackend>, control: Arc<dyn Control>) -> Self {
        Self { backend, control, minted: AtomicU64::new(0) }
    }

    // Time and trouble.

    /// The time the store sees.
    pub(crate) fn now(&self) -> TimestampMs {
        self.control.now()
    }

    /// Moves time without running what became due.
    pub(crate) fn advance(&self, ms: u64) {
        self.control.advance(ms);
    }

    /// Moves time to any moment.
    pub(crate) fn set_clock(&self, now: TimestampMs) {
        self.control.set_clock(now);
    }

    /// Runs what is due; says how many items were handled.
    pub(crate) async fn run_due(&self) -> usize {
        self.control.run_due(&*self.backend).await.0
    }

    /// Moves time and runs what became due.
    pub(crate) async fn pass(&self, ms: u64) {
        self.advance(ms);
        self.run_due().await;
    }

    /// Makes a record unreadable.
    pub(crate) async fn damage(&self, what: Damage) {
        self.control.damage(&*self.backend, what).await;
    }

    /// Loses the index entries of an execution.
    pub(crate) async fn lose_index_entries(&self, execution: ExecutionId) {
        self.control.lose_index_entries(&*self.backend, execution).await;
    }

    // Names and ids.

    /// A UUID no other call of this world returned.
    pub(crate) fn uuid(&self) -> Uuid {
        let n = self.minted.fetch_add(1, Ordering::Relaxed) + 1;
        Uuid::from_u128(0xfab0_0000_0000_4000_8000_0000_0000_0000 | u128::from(n))
    }

    /// The namespace of most cases.
    pub(crate) fn namespace(&self) -> Namespace {
        Namespace::new("acme").unwrap()
    }

    /// The lane of most cases.
    pub(crate) fn lane(&self) -> LaneId {
        LaneId::new("default").unwrap()
    }

    /// A new execution id in the partition of the usual lane.
    pub(crate) fn execution_id(&self) -> ExecutionId {
        ExecutionId::solo(&self.lane(), &PartitionCounts::default(), self.uuid())
    }

    /// A new id for a member of a flow.
    pub(crate) fn member_id(&self, flow: FlowId) -> ExecutionId {
        ExecutionId::for_flow(flow, &PartitionCounts::default(), self.uuid())
    }

    /// The worker of most cases.
    pub(crate) fn worker(&self) -> (WorkerId, WorkerInstanceId) {
        worker("worker-a")
    }

    // Creating.

    /// A plain submission on the usual lane.
    pub(crate) fn submission(&self) -> CreateExecutionArgs {
        CreateExecutionArgs::new(self.execution_id(), self.namespace(), self.lane(), "task")
    }

    /// Creates what a case asks for.
    pub(crate) async fn submit(&self, args: CreateExecutionArgs) -> ExecutionId {
        match self.backend.create_execution(args).await.unwrap() {
            CreateExecutionResult::Created { execution_id, .. } => execution_id,
            other @ CreateExecutionResult::Duplicate { .. } => panic!("expected a new execution, got {other:?}"),
        }
    }

    /// A claimable execution.
    pub(crate) async fn create(&self) -> ExecutionId {
        self.submit(self.submission()).await
    }

    /// A claimable execution with a policy.
    pub(crate) async fn create_with(&self, policy: &ExecutionPolicy) -> ExecutionId {
        self.submit(CreateExecutionArgs { policy: Some(PolicyDocument::from(policy)), ..self.submission() }).await
    }

    // Claiming.

    /// Claims for the usual worker without capabilities.
    pub(crate) async fn claim(&self) -> Option<Handle> {
        self.claim_as("worker-a", LEASE_MS).await.unwrap()
    }

    /// Claims for a named worker.
    pub(crate) async fn claim_as(&self, name: &str, lease_ttl_ms: u64) -> Result<Option<Handle>> {
        let (worker_id, instance) = worker(name);
        let policy = ClaimPolicy::new(worker_id, instance, lease_ttl_ms);
        self.backend.claim(&self.lane(), &CapabilitySet::default(), policy).await
    }

    /// A new execution, held by the usual worker.
    pub(crate) async fn claim_one(&self) -> (ExecutionId, Handle) {
        let id = self.create().await;
        (id, self.claim().await.expect("the new execution is claimable"))
    }

    /// A new execution with a policy, held by the usual worker.
    pub(crate) async fn claim_one_with(&self, policy: &ExecutionPolicy) -> (ExecutionId, Handle) {
        let id = self.create_with(policy).await;
        (id, self.claim().await.expect("the new execution is claimable"))
    }

    // Looking.

    /// The public state of an execution that exists.
    pub(crate) async fn state(&self, id: ExecutionId) -> PublicState {
        self.backend.read_execution_state(id).await.unwrap().expect("the execution exists")
    }
}

/// A worker and its one process, both named.
pub(crate) fn worker(name: &str) -> (WorkerId, WorkerInstanceId) {
    (WorkerId::new(name).unwrap(), WorkerInstanceId::new(format!("{name}-1")).unwrap())
}
