//! What a store must offer to be tested.

use std::sync::Arc;

use async_trait::async_trait;
use ff_core::TimestampMs;
use ff_core::backend::EngineBackend;
use ff_core::ids::{ExecutionId, FlowId, WaitpointId};

/// How to make a fresh, isolated backend.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The backend under test.
    type Backend: EngineBackend;

    /// A backend that shares nothing with any other case.
    async fn open(&self) -> Instance<Self::Backend>;
}

/// A fresh backend and its controls.
pub struct Instance<B> {
    /// The backend.
    pub backend: B,
    /// Time and trouble.
    pub control: Arc<dyn Control>,
}

/// A stored record that can be made unreadable.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// State and ownership of an execution.
    Execution(ExecutionId),
    /// The frozen definition of an execution.
    Definition(ExecutionId),
    /// A flow.
    Flow(FlowId),
    /// A waitpoint of an execution's partition.
    Waitpoint(ExecutionId, WaitpointId),
}

/// Moves time and makes trouble; everything else goes through the contract.
#[async_trait]
pub trait Control: Send + Sync {
    /// The time the store sees.
    fn now(&self) -> TimestampMs;

    /// Moves it forward.
    fn advance(&self, ms: u64);

    /// Moves it to any time, also back.
    fn set_clock(&self, now: TimestampMs);

    /// Runs what is due, until nothing is; says how many items were handled and how many failed.
    async fn run_due(&self, backend: &dyn EngineBackend) -> (usize, usize);

    /// Makes a record unreadable, as a damaged disk would.
    async fn damage(&self, backend: &dyn EngineBackend, what: Damage);

    /// Loses the index entries of an execution, as a lost write would.
    async fn lose_index_entries(&self, backend: &dyn EngineBackend, execution: ExecutionId);
}
