//! Children that an execution spawns while it runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::TimestampMs;
use crate::blob::Blob;
use crate::ids::LaneId;
use crate::policy::PolicyDocument;
use crate::trace::TraceContext;

/// Most children of one call.
pub const SPAWN_CHILDREN_MAX: usize = 1_000;

/// Most bytes of input of all children of one call.
pub const SPAWN_BYTES_MAX: usize = 16 << 20;

/// One child of a running execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct SpawnChild {
    /// Unique among the children of the parent's life; the result is handed over under it.
    pub name: String,
    /// Which handler runs it.
    pub execution_kind: String,
    /// Input of the handler.
    #[serde(default)]
    pub input_payload: Blob,
    /// How the input is encoded; opaque.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_encoding: Option<String>,
    /// The queue; the parent's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane_id: Option<LaneId>,
    /// Higher runs first; the parent's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Tags of the execution.
    #[serde(default)]
    #[cfg_attr(test, proptest(strategy = "some_tags()"))]
    pub tags: BTreeMap<String, String>,
    /// Policy of the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyDocument>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_until: Option<TimestampMs>,
    /// The trace it belongs to; handed to its handlers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<TraceContext>,
}

impl SpawnChild {
    /// A child with an input, everything else as its parent has it.
    #[must_use]
    pub fn new(name: impl Into<String>, execution_kind: impl Into<String>, input_payload: impl Into<Blob>) -> Self {
        Self {
            name: name.into(),
            execution_kind: execution_kind.into(),
            input_payload: input_payload.into(),
            payload_encoding: None,
            lane_id: None,
            priority: None,
            tags: BTreeMap::new(),
            policy: None,
            delay_until: None,
            trace_context: None,
        }
    }
}

#[cfg(test)]
use crate::backend::flows::args::tests::some_tags;

#[cfg(test)]
mod tests {
    crate::testing::json_round_trips!(SpawnChild);
}
