//! Registered worker instances.

use std::collections::BTreeSet;

use ff_core::TimestampMs;
use ff_core::ids::{LaneId, Namespace, WorkerId, WorkerInstanceId};
use ff_core::kinds::handles;
use serde::{Deserialize, Serialize};

use super::{Route, Stored};
use crate::index::{DueKind, Entry, Index, Position, pair_bytes};
use crate::key::Key;

/// One registered process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Worker {
    pub namespace: Namespace,
    pub instance: WorkerInstanceId,
    pub worker_id: WorkerId,
    pub lanes: BTreeSet<LaneId>,
    pub capabilities: BTreeSet<String>,
    /// Kinds it serves; none means all.
    #[serde(default)]
    pub kinds: Option<BTreeSet<String>>,
    pub liveness_ttl_ms: u64,
    pub registered_at: TimestampMs,
    pub last_heartbeat_at: TimestampMs,
}

impl Worker {
    /// Whether it can do what such work asks for.
    #[must_use]
    pub fn serves(&self, route: &Route) -> bool {
        handles(self.kinds.as_ref(), route.kind.as_str()) && route.requirement.is_covered_by(&self.capabilities)
    }

    /// When the registration lapses.
    #[must_use]
    pub fn expires_at(&self) -> TimestampMs {
        self.last_heartbeat_at.plus(self.liveness_ttl_ms)
    }

    /// Whether it has been heard of recently enough.
    #[must_use]
    pub fn is_live(&self, now: TimestampMs) -> bool {
        !self.expires_at().is_due(now)
    }
}

impl Stored for Worker {
    fn key(&self) -> Key {
        Key::worker(self.namespace.clone(), self.instance.clone())
    }

    fn entries(&self, out: &mut Vec<Entry>) {
        let by_name = pair_bytes(self.namespace.as_str(), self.instance.as_str());
        out.push(Entry::new(Index::Workers, Position::by(by_name.clone())));
        out.push(Entry::new(Index::Due(DueKind::WorkerExpiry), Position::at(self.expires_at(), by_name)));
        for lane in &self.lanes {
            out.push(Entry::new(
                Index::WorkersOf(self.namespace.clone(), lane.clone()),
                Position::by(self.instance.as_str().as_bytes()),
            ));
        }
    }
}
