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

/// Cursors of a store whose log has one number per event.
pub mod numbered {
    use ff_core::cursor::EventCursor;
    use ff_core::handle::BackendTag;
    use ff_core::{EngineError, Result};

    /// What is left of a numbered log.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Extent {
        /// The last event that was trimmed, 0 when none was.
        pub trimmed: u64,
        /// The last event there ever was, 0 when there was none.
        pub last: u64,
    }

    /// The cursor after an event.
    #[must_use]
    pub fn cursor(tag: BackendTag, sequence: u64) -> EventCursor {
        let mut bytes = vec![tag.wire_byte()];
        bytes.extend_from_slice(&sequence.to_be_bytes());
        EventCursor::from_bytes(bytes)
    }

    /// After which event a reader with this cursor goes on.
    ///
    /// # Errors
    /// `InvalidInput` for a cursor of another store, a truncated one, or one ahead of the log; `CursorExpired` for one whose events were
    /// trimmed.
    pub fn resume(tag: BackendTag, cursor: &EventCursor, log: Extent) -> Result<u64> {
        if cursor.is_tail() {
            return Ok(log.last);
        }
        let after = number(tag, cursor)?;
        if after > log.last {
            return Err(EngineError::invalid("event cursor is ahead of the log, so it belongs to another one"));
        }
        if after < log.trimmed {
            return Err(EngineError::CursorExpired { resume_from: self::cursor(tag, log.trimmed) });
        }
        Ok(after)
    }

    /// The number that a cursor carries.
    ///
    /// # Errors
    /// `InvalidInput` for the tail, a cursor of another store, or a truncated one.
    pub fn number(tag: BackendTag, cursor: &EventCursor) -> Result<u64> {
        match cursor.as_bytes() {
            [first, rest @ ..] if *first == tag.wire_byte() => {
                let bytes = rest.try_into().map_err(|_| EngineError::invalid("event cursor has the wrong length"))?;
                Ok(u64::from_be_bytes(bytes))
            }
            _ => Err(EngineError::invalid("event cursor of another backend")),
        }
    }
}
