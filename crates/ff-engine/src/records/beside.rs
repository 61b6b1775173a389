//! The cold records beside an execution.

use std::collections::BTreeMap;

use ff_core::ids::ExecutionId;
use ff_core::policy::ExecutionPolicy;
use ff_core::trace::TraceContext;
use ff_core::{Blob, TimestampMs};
use serde::{Deserialize, Serialize};

use super::Stored;
use super::sparse::sparse;
use crate::index::{Entry, Index, Position};
use crate::key::Key;

/// What was frozen at creation.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Definition {
    pub execution: ExecutionId,
    /// Whether the creator gave a policy at all: without one nothing is retried.
    pub policy: Option<ExecutionPolicy>,
    pub payload_encoding: Option<String>,
    pub creator_identity: String,
    pub idempotency_key: Option<String>,
    pub trace_context: Option<TraceContext>,
}

sparse!(Definition {
    known: [execution: ExecutionId],
    always: [],
    or_default: [policy, payload_encoding, creator_identity, idempotency_key, trace_context],
});

impl Stored for Definition {
    fn key(&self) -> Key {
        Key::definition(self.execution)
    }
}

/// Input bytes, and upstream results by edge name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Payload {
    pub execution: ExecutionId,
    pub payload: Blob,
    pub inputs: BTreeMap<String, Blob>,
}

sparse!(Payload { known: [execution: ExecutionId], always: [], or_default: [payload, inputs], });

impl Stored for Payload {
    fn key(&self) -> Key {
        Key::payload(self.execution)
    }
}

/// Result bytes of a completed execution.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Outcome {
    pub execution: ExecutionId,
    pub result: Blob,
}

sparse!(Outcome { known: [execution: ExecutionId], always: [], or_default: [result], });

impl Stored for Outcome {
    fn key(&self) -> Key {
        Key::outcome(self.execution)
    }
}

/// Progress as the worker tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Progress {
    pub execution: ExecutionId,
    pub percent: Option<u8>,
    pub message: Option<String>,
    pub updated_at: TimestampMs,
}

impl Stored for Progress {
    fn key(&self) -> Key {
        Key::progress(self.execution)
    }
}

/// Tags of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ExecutionTags {
    pub execution: ExecutionId,
    pub created_at: TimestampMs,
    pub tags: BTreeMap<String, String>,
    pub updated_at: TimestampMs,
}

sparse!(ExecutionTags { known: [execution: ExecutionId], always: [created_at, updated_at], or_default: [tags], });

impl Stored for ExecutionTags {
    fn key(&self) -> Key {
        Key::execution_tags(self.execution)
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        for (key, value) in &self.tags {
            out.push(Entry::new(
                Index::Tagged(key.clone(), value.clone()),
                Position::of(-self.created_at.0, self.execution),
            ));
        }
    }
}
