//! What happened, appended in the commit that made it happen.

use std::collections::BTreeMap;

use ff_core::TimestampMs;
use ff_core::backend::subscriptions::{CompletionOutcome, LeaseChange, ScannerFilter, SignalDeliveryEffect};
use ff_core::cursor::EventCursor;
use ff_core::ids::{ExecutionId, FlowId, Namespace, SignalId, WaitpointId, WorkerInstanceId};
use ff_core::partition::Partition;
use serde::{Deserialize, Serialize};

/// One entry of a partition's log. Carries what subscription filters look at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Event {
    pub partition: Partition,
    pub namespace: Namespace,
    pub execution_id: Option<ExecutionId>,
    pub tags: BTreeMap<String, String>,
    pub at: TimestampMs,
    pub body: EventBody,
}

/// What an event tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum EventBody {
    Lease(LeaseChange),
    Completion { outcome: CompletionOutcome, flow_id: Option<FlowId> },
    Signal { signal_id: SignalId, waitpoint_id: WaitpointId, source_identity: String, effect: SignalDeliveryEffect },
    InstanceTag { key: String, value: String },
    PriorityChanged { from: i32, to: i32 },
    Replayed { reason: String, requested_by: String },
    FlowCancelRequested { flow_id: FlowId, reason: String },
    LaneStateChanged { lane: String, state: String, reason: String },
    Worker { instance: WorkerInstanceId, change: WorkerChange },
}

/// What happened to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum WorkerChange {
    Registered,
    Heartbeat,
    MarkedDead { reason: String },
    TtlSwept,
}

impl Event {
    /// Whether a subscriber with this filter wants it.
    #[must_use]
    pub fn matches(&self, filter: &ScannerFilter) -> bool {
        filter.matches(&self.namespace, &self.tags)
    }
}

/// Events in order, each with the cursor that resumes after it.
#[derive(Clone, Debug, PartialEq)]
pub struct EventPage {
    /// What was found.
    pub events: Vec<(EventCursor, Event)>,
    /// Where to continue, also when nothing was found.
    pub next: EventCursor,
}
