//! How records are addressed: a partition and a name inside it.

use ff_core::cursor::FrameId;
use ff_core::ids::{
    AttemptIndex, BudgetId, EdgeId, ExecutionId, FlowId, LaneId, LeaseEpoch, Namespace, QuotaPolicyId, SignalId,
    WaitpointId, WorkerInstanceId,
};
use ff_core::partition::{Partition, of_worker};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use ff_core::TimestampMs;

use crate::records::{DedupScope, QueueClass, Scope};

/// The address of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Where it lives.
    pub partition: Partition,
    /// What it is called there.
    pub name: Name,
}

/// The name of a record inside its partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Name {
    Execution(ExecutionId),
    /// Not stored on its own: ownership as a part of the execution with a version of its own.
    Fence(ExecutionId),
    Definition(ExecutionId),
    Payload(ExecutionId),
    Outcome(ExecutionId),
    Progress(ExecutionId),
    ExecutionTags(ExecutionId),
    Attempt(ExecutionId, AttemptIndex),
    AttemptUsage(ExecutionId, AttemptIndex),
    Grant(ExecutionId),
    StreamHead(ExecutionId, AttemptIndex),
    Frame(ExecutionId, AttemptIndex, FrameId),
    Summary(ExecutionId, AttemptIndex),
    Suspension(ExecutionId, u32),
    Waitpoint(WaitpointId),
    Signal(WaitpointId, SignalId),
    SignalTally(ExecutionId),
    StepHead(ExecutionId),
    Step(ExecutionId, u32, String),
    Dedup(DedupScope),
    Settlement(ExecutionId, LeaseEpoch),
    Flow(FlowId),
    FlowTags(FlowId),
    Edge(FlowId, EdgeId),
    EdgeGroup(ExecutionId, u32),
    FlowProjection(FlowId),
    ProjectionMark(FlowId, i64),
    CancelAck(FlowId, ExecutionId),
    Continuation(Uuid),
    Intake(Uuid),
    Budget(BudgetId),
    Ledger(BudgetId, ExecutionId),
    QuotaPolicy(QuotaPolicyId),
    QuotaUsage(QuotaPolicyId),
    Admission(QuotaPolicyId, ExecutionId),
    WindowEntry(QuotaPolicyId, String, TimestampMs, ExecutionId),
    Worker(Namespace, WorkerInstanceId),
    Lane(Namespace, LaneId),
    LaneClass(Namespace, LaneId, QueueClass),
    ScopeBinding(Scope),
    Keyring,
    Deployment,
}

macro_rules! execution_keys {
    ($($(#[$meta:meta])* $fn:ident => $variant:ident ($($arg:ident : $ty:ty),*)),+ $(,)?) => {$(
        $(#[$meta])*
        #[must_use]
        pub const fn $fn(execution: ExecutionId $(, $arg: $ty)*) -> Self {
            Self { partition: execution.partition(), name: Name::$variant(execution $(, $arg)*) }
        }
    )+};
}

macro_rules! homed_keys {
    ($($(#[$meta:meta])* $fn:ident => $variant:ident ($($arg:ident : $ty:ty),*)),+ $(,)?) => {$(
        $(#[$meta])*
        #[must_use]
        pub const fn $fn(home: Partition $(, $arg: $ty)*) -> Self {
            Self { partition: home, name: Name::$variant($($arg),*) }
        }
    )+};
}

impl Key {
    execution_keys! {
        /// State and ownership of an execution.
        execution => Execution(),
        /// Ownership only: unaffected by changes that leave the owner as it is.
        fence => Fence(),
        /// What was frozen at creation.
        definition => Definition(),
        /// Input bytes.
        payload => Payload(),
        /// Result bytes.
        outcome => Outcome(),
        /// Progress as the worker tells it.
        progress => Progress(),
        /// Tags of an execution.
        execution_tags => ExecutionTags(),
        /// One attempt.
        attempt => Attempt(index: AttemptIndex),
        /// What one attempt used.
        attempt_usage => AttemptUsage(index: AttemptIndex),
        /// The live grant.
        grant => Grant(),
        /// Head of an attempt's stream.
        stream_head => StreamHead(index: AttemptIndex),
        /// One frame.
        frame => Frame(index: AttemptIndex, id: FrameId),
        /// The summary document of an attempt.
        summary => Summary(index: AttemptIndex),
        /// One suspension episode.
        suspension => Suspension(ordinal: u32),
        /// Counters of signals.
        signal_tally => SignalTally(),
        /// How many steps an execution has.
        step_head => StepHead(),
        /// One step of one life of an execution.
        step => Step(life: u32, name: String),
        /// What ending one ownership owes to other partitions.
        settlement => Settlement(epoch: LeaseEpoch),
        /// Inbound edges of an execution, as one decision.
        edge_group => EdgeGroup(generation: u32),
    }

    homed_keys! {
        /// A waitpoint.
        waitpoint => Waitpoint(id: WaitpointId),
        /// A recorded signal.
        signal => Signal(waitpoint: WaitpointId, id: SignalId),
        /// A flow.
        flow => Flow(id: FlowId),
        /// Tags of a flow.
        flow_tags => FlowTags(id: FlowId),
        /// An edge.
        edge => Edge(flow: FlowId, id: EdgeId),
        /// The projected summary of a flow.
        flow_projection => FlowProjection(flow: FlowId),
        /// A request to project a flow, one per second at most.
        projection_mark => ProjectionMark(flow: FlowId, second: i64),
        /// A member whose cancellation somebody else has taken care of.
        cancel_ack => CancelAck(flow: FlowId, execution: ExecutionId),
        /// Unfinished bulk work.
        continuation => Continuation(id: Uuid),
        /// Something on its way in.
        intake => Intake(id: Uuid),
        /// A budget.
        budget => Budget(id: BudgetId),
        /// What one execution spent of a budget.
        ledger => Ledger(budget: BudgetId, execution: ExecutionId),
        /// A quota's definition.
        quota_policy => QuotaPolicy(id: QuotaPolicyId),
        /// A quota's counters.
        quota_usage => QuotaUsage(id: QuotaPolicyId),
        /// One execution admitted by a quota.
        admission => Admission(quota: QuotaPolicyId, execution: ExecutionId),
    }

    /// The execution that the record belongs to, if its id is a part of the name.
    #[must_use]
    pub const fn execution_id(&self) -> Option<ExecutionId> {
        match &self.name {
            Name::Execution(id)
            | Name::Fence(id)
            | Name::Definition(id)
            | Name::Payload(id)
            | Name::Outcome(id)
            | Name::Progress(id)
            | Name::ExecutionTags(id)
            | Name::Attempt(id, _)
            | Name::AttemptUsage(id, _)
            | Name::Grant(id)
            | Name::StreamHead(id, _)
            | Name::Frame(id, ..)
            | Name::Summary(id, _)
            | Name::Suspension(id, _)
            | Name::SignalTally(id)
            | Name::StepHead(id)
            | Name::Step(id, ..)
            | Name::Settlement(id, _)
            | Name::EdgeGroup(id, _) => Some(*id),
            _ => None,
        }
    }

    /// Whether the record can stand in an index that does more than follow its key. Others are written without a look at what was there.
    #[must_use]
    pub const fn may_be_listed(&self) -> bool {
        !matches!(
            self.name,
            Name::Definition(_)
                | Name::Payload(_)
                | Name::Outcome(_)
                | Name::Progress(_)
                | Name::Attempt(..)
                | Name::AttemptUsage(..)
                | Name::Frame(..)
                | Name::Summary(..)
        )
    }

    /// One admission inside a rate window.
    #[must_use]
    pub const fn window_entry(
        home: Partition,
        quota: QuotaPolicyId,
        dimension: String,
        at: TimestampMs,
        execution: ExecutionId,
    ) -> Self {
        Self { partition: home, name: Name::WindowEntry(quota, dimension, at, execution) }
    }

    /// A deduplication record.
    #[must_use]
    pub const fn dedup(home: Partition, scope: DedupScope) -> Self {
        Self { partition: home, name: Name::Dedup(scope) }
    }

    /// A registered worker instance.
    #[must_use]
    pub fn worker(namespace: Namespace, instance: WorkerInstanceId) -> Self {
        Self { partition: of_worker(&instance), name: Name::Worker(namespace, instance) }
    }

    /// A lane.
    #[must_use]
    pub const fn lane(namespace: Namespace, lane: LaneId) -> Self {
        Self { partition: Partition::GLOBAL, name: Name::Lane(namespace, lane) }
    }

    /// A class of work that a lane has seen.
    #[must_use]
    pub const fn lane_class(namespace: Namespace, lane: LaneId, class: QueueClass) -> Self {
        Self { partition: Partition::GLOBAL, name: Name::LaneClass(namespace, lane, class) }
    }

    /// What is attached to a scope.
    #[must_use]
    pub const fn scope_binding(scope: Scope) -> Self {
        Self { partition: Partition::GLOBAL, name: Name::ScopeBinding(scope) }
    }

    /// Secrets.
    #[must_use]
    pub const fn keyring() -> Self {
        Self { partition: Partition::GLOBAL, name: Name::Keyring }
    }

    /// Settings fixed at first start.
    #[must_use]
    pub const fn deployment() -> Self {
        Self { partition: Partition::GLOBAL, name: Name::Deployment }
    }
}
