//! Why an execution is where it is, as data.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::backend::dependencies::EdgeDependencyPolicy;
use crate::backend::suspension::SuspensionReasonCode;
use crate::ids::{BudgetId, EdgeId, ExecutionId, FlowId, QuotaPolicyId, SuspensionId, WorkerId, WorkerInstanceId};
use crate::state::{BlockingReason, LaneState, PublicState, TerminalOutcome};
use crate::time::TimestampMs;

/// The reasons an execution is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The label users see.
    pub public_state: PublicState,
    /// Most decisive first; never empty.
    pub reasons: Vec<Reason>,
}

/// One link of an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reason {
    /// Nothing holds it; the next worker that comes gets it.
    Claimable,
    /// Workers of its namespace and lane live, but none of them handles its kind.
    NoLiveWorkerHandles {
        /// The kind.
        kind: String,
    },
    /// No live worker of its namespace and lane that handles its kind has all it requires.
    NoLiveWorkerCovers {
        /// Everything it requires.
        required: BTreeSet<String>,
        /// What none of those workers has; empty when each lacks something else, or none is needed but no worker lives.
        missing_capabilities: BTreeSet<String>,
    },
    /// Its time has not come.
    DelayedUntil {
        /// When it comes.
        at: TimestampMs,
        /// What the delay is for.
        blocking_reason: BlockingReason,
    },
    /// An upstream is not finished.
    DependencyWaits {
        /// The edge.
        edge_id: EdgeId,
        /// The upstream.
        upstream_execution_id: ExecutionId,
        /// Where the upstream is.
        upstream_state: PublicState,
    },
    /// Its group of upstreams is undecided.
    Group {
        /// What the group asks for.
        policy: EdgeDependencyPolicy,
        /// Upstreams that must end as wanted.
        needed: u32,
        /// Upstreams that did.
        satisfied: u32,
        /// Upstreams that ended otherwise.
        impossible: u32,
        /// Upstreams that are not finished.
        outstanding: u32,
    },
    /// A budget has nothing left.
    BudgetExhausted {
        /// The budget.
        budget_id: BudgetId,
        /// What ran out.
        dimension: String,
        /// What was used.
        usage: u64,
        /// What may be used.
        limit: u64,
        /// When it fills up again; absent when it never does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_reset_at: Option<TimestampMs>,
    },
    /// The window of a quota is full.
    QuotaRate {
        /// The quota.
        quota_policy_id: QuotaPolicyId,
        /// When there is room again.
        frees_at: TimestampMs,
    },
    /// As many run as a quota allows.
    QuotaConcurrency {
        /// The quota.
        quota_policy_id: QuotaPolicyId,
        /// How many run.
        holders: u64,
        /// How many may.
        cap: u64,
    },
    /// Its lane hands out nothing.
    LanePaused {
        /// The state of the lane.
        state: LaneState,
    },
    /// A person holds it.
    HeldByOperator,
    /// A rule holds it.
    HeldByPolicy,
    /// It waits for the outside world.
    Suspended {
        /// The suspension.
        suspension_id: SuspensionId,
        /// What it waits for.
        waiting_for: SuspensionReasonCode,
        /// When the wait ends by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<TimestampMs>,
        /// Waitpoints that still take signals.
        open_waitpoints: u32,
    },
    /// A worker runs it.
    Running {
        /// The owner.
        worker_instance_id: WorkerInstanceId,
        /// When its lease ends unless it is renewed.
        lease_expires_at: TimestampMs,
    },
    /// Its owner lost the lease.
    LeaseLost {
        /// Taken away, rather than run out: claims do not serve it, an explicit grant is needed.
        revoked: bool,
        /// When claims may take it over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reclaimable_at: Option<TimestampMs>,
    },
    /// A grant reserves it for one worker.
    Reserved {
        /// For whom.
        worker_id: WorkerId,
        /// Until when.
        until: TimestampMs,
    },
    /// Its flow was cancelled.
    FlowCancelled {
        /// The flow.
        flow_id: FlowId,
    },
    /// It is over.
    Finished {
        /// How it ended.
        outcome: TerminalOutcome,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::testing::answer_round_trips!(Reason, Explanation);

    #[test]
    fn a_reason_is_tagged_data() {
        let reason = Reason::LeaseLost { revoked: true, reclaimable_at: None };
        let json = serde_json::to_value(&reason).expect("serializes");
        assert_eq!(json, serde_json::json!({"type": "lease_lost", "revoked": true}));
    }
}
