//! What a backend is, what it can do, and whether it is there.

use std::any::Any;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::layer::forward;
use crate::error::{EngineError, Result};

/// A release number, ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// Changes with breaking changes.
    pub major: u32,
    /// Changes with additions.
    pub minor: u32,
    /// Changes with repairs.
    pub patch: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Which backend this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct BackendIdentity {
    /// `valkey`, `postgres`, `sqlite`, `memory`, or `unknown`.
    pub family: String,
    /// Its release.
    pub version: Version,
}

impl Default for BackendIdentity {
    fn default() -> Self {
        Self { family: UNKNOWN.to_owned(), version: Version::default() }
    }
}

const UNKNOWN: &str = "unknown";

macro_rules! supports {
    ($($(#[$meta:meta])* $name:ident),+ $(,)?) => {
        /// Which operations work: a true flag means the operation never answers `Unavailable`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(test, derive(proptest_derive::Arbitrary))]
        #[serde(default, deny_unknown_fields)]
        pub struct Supports {
            $($(#[$meta])* pub $name: bool),+
        }

        impl Supports {
            /// Everything works.
            pub const ALL: Self = Self { $($name: true),+ };
        }
    };
}

supports! {
    /// Cancels by id.
    cancel_execution,
    /// Re-ranks waiting executions.
    change_priority,
    /// Opens terminal executions again.
    replay_execution,
    /// Takes leases away.
    revoke_lease,
    /// Reads the public state.
    read_execution_state,
    /// Reads all of an execution.
    read_execution_info,
    /// Reads results.
    get_execution_result,
    /// Creates, charges, resets and reads budgets.
    budget_admin,
    /// Creates quota policies and checks admission.
    quota_admin,
    /// Rotates the secret of waitpoint tokens.
    rotate_waitpoint_hmac_secret_all,
    /// Seeds the secret of waitpoint tokens.
    seed_waitpoint_hmac_secret,
    /// Lists open waitpoints.
    list_pending_waitpoints,
    /// Cancels a flow without waiting for its members.
    cancel_flow_header,
    /// Waits a while for a flow's cancellation.
    cancel_flow_wait_timeout,
    /// Waits for a flow's cancellation.
    cancel_flow_wait_indefinite,
    /// Acknowledges cancelled members.
    ack_cancel_member,
    /// Reserves work for a worker.
    claim_for_worker,
    /// Grants and performs reclaims.
    issue_reclaim_grant,
    /// Prepares the store at start.
    prepare,
    /// Streams lease events.
    subscribe_lease_history,
    /// Streams completions.
    subscribe_completion,
    /// Streams signal deliveries.
    subscribe_signal_delivery,
    /// Streams tag changes.
    subscribe_instance_tags,
    /// Folds frames into a durable summary.
    stream_durable_summary,
    /// Keeps live frames for a while only.
    stream_best_effort_live,
    /// Registers workers.
    register_worker,
    /// Keeps registered workers alive.
    heartbeat_worker,
    /// Marks workers dead.
    mark_worker_dead,
    /// Lists expired leases.
    list_expired_leases,
    /// Lists workers.
    list_workers,
    /// Gives quota slots back.
    release_admission,
    /// Reads the limits of a quota policy.
    read_quota_policy_limits,
    /// Parks executions that admission denied.
    block_execution_for_admission,
    /// Reads usage and limits of a budget.
    read_budget_usage_and_limits,
}

/// What a backend is and what works on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// What it is.
    pub identity: BackendIdentity,
    /// What works.
    pub supports: Supports,
}

/// What preparing a store did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PrepareOutcome {
    /// It was ready.
    NoOp,
    /// It is ready now.
    Applied {
        /// What was done, for people.
        description: String,
    },
}

/// Says what a backend is, readies it and lets it go.
#[async_trait]
#[allow(unused_variables, reason = "default bodies ignore their arguments")]
pub trait Connection: Send + Sync {
    /// A constant label for logs and metrics, such as `sqlite`.
    fn backend_label(&self) -> &'static str {
        UNKNOWN
    }

    /// The backend itself, for code that knows its concrete type; a layer answers what it wraps.
    fn as_any(&self) -> &dyn Any;

    /// What the backend is and which operations work; constant, without input or output.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Readies the store, once per start; calling again does nothing more.
    ///
    /// Errors: transport; a store that a newer release has taken over refuses.
    async fn prepare(&self) -> Result<PrepareOutcome> {
        Ok(PrepareOutcome::NoOp)
    }

    /// One round trip to the store. Errors: transport.
    async fn ping(&self) -> Result<()> {
        Err(EngineError::Unavailable { op: "ping" })
    }

    /// Takes no new work and waits for what is in flight; `Timeout` when that takes longer than `grace`. Then tells those who wait elsewhere
    /// what has happened; `Transport` or `Timeout` when they cannot be told and find out later by themselves. From now on nothing waits: a claim,
    /// `await_outcome` or `await_lost_leases` that would have to is answered by a `Transport` error that is not retryable, also one that
    /// waits already. What need not wait works on.
    async fn shutdown_prepare(&self, grace: Duration) -> Result<()> {
        Ok(())
    }

    /// The store's clock, in milliseconds since the Unix epoch.
    async fn server_time_ms(&self) -> Result<u64> {
        Err(EngineError::Unavailable { op: "server_time_ms" })
    }
}

forward! { Connection through around_answer noting {
        backend_label() -> &'static str;
        as_any() -> &dyn Any;
        capabilities() -> Capabilities;
    },
    prepare() -> PrepareOutcome => Safe;
    ping() -> () => Safe;
    shutdown_prepare(grace: Duration) -> () => Safe;
    server_time_ms() -> u64 => Safe;
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::testing::answer_round_trips!(Version, BackendIdentity, Supports, Capabilities, PrepareOutcome);

    #[test]
    fn nothing_works_unless_claimed_and_all_means_every_flag() {
        let flags = |supports: Supports| {
            let serde_json::Value::Object(map) = serde_json::to_value(supports).unwrap() else { unreachable!() };
            map
        };
        assert_eq!(flags(Supports::ALL).len(), 34);
        assert!(flags(Supports::ALL).values().all(|flag| flag == true));
        assert!(flags(Supports::default()).values().all(|flag| flag == false));
    }

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let version = |major, minor, patch| Version { major, minor, patch };
        assert!(version(0, 10, 0) > version(0, 9, 9));
        assert_eq!(version(1, 2, 3).to_string(), "1.2.3");
    }
}
