//! What can go wrong, typed by what the caller can do next.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::dependencies::EdgeSnapshot;
use crate::cursor::EventCursor;
use crate::ids::{AttemptId, LeaseEpoch};
use crate::state::{LifecyclePhase, TerminalOutcome};
use crate::words::words;

/// The answer of every operation.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

words! {
    /// What a caller can do about an error.
    pub enum ErrorClass {
        /// Repeating cannot help.
        Terminal = "terminal",
        /// State moved under the caller, or a resource is short; try again.
        Retryable = "retryable",
        /// Act, then stop: a hard limit was reached.
        Cooperative = "cooperative",
        /// Nothing to do: what was asked holds already, or no longer matters.
        Informational = "informational",
        /// An internal invariant is broken.
        Bug = "bug",
    }
}

words! {
    /// Kinds of records that can be missing.
    pub enum Entity {
        /// An execution.
        Execution = "execution",
        /// A flow.
        Flow = "flow",
        /// A budget.
        Budget = "budget",
        /// A waitpoint.
        Waitpoint = "waitpoint",
        /// A lane.
        Lane = "lane",
    }
}

words! {
    /// Why input or stored data was refused.
    pub enum ValidationKind {
        /// A field is wrong; the detail names it or its code.
        InvalidInput = "invalid_input",
        /// The worker lacks capabilities; the detail lists them, sorted.
        CapabilityMismatch = "capability_mismatch",
        /// A capability list is malformed or too large.
        InvalidCapabilities = "invalid_capabilities",
        /// A policy does not decode.
        InvalidPolicyJson = "invalid_policy_json",
        /// A payload, result or signal body is over its limit.
        PayloadTooLarge = "payload_too_large",
        /// The execution has taken as many signals as it may.
        SignalLimitExceeded = "signal_limit_exceeded",
        /// A bearer token was rejected, or the waitpoint is not the caller's to know.
        InvalidToken = "invalid_token",
        /// A pending waitpoint has no token.
        WaitpointNotTokenBound = "waitpoint_not_token_bound",
        /// A frame is over its limit.
        RetentionLimitExceeded = "retention_limit_exceeded",
        /// The attempt index of a suspend is not the current one.
        InvalidLeaseForSuspend = "invalid_lease_for_suspend",
        /// The edge is unknown or its ends differ.
        InvalidDependency = "invalid_dependency",
        /// The waitpoint belongs to another execution or attempt.
        InvalidWaitpointForExecution = "invalid_waitpoint_for_execution",
        /// A budget scope is empty or of an unknown type.
        InvalidBudgetScope = "invalid_budget_scope",
        /// A quota makes no sense.
        InvalidQuotaSpec = "invalid_quota_spec",
        /// A key id is empty or has a colon.
        InvalidKid = "invalid_kid",
        /// A secret is empty, of odd length or not hex.
        InvalidSecretHex = "invalid_secret_hex",
        /// A grace period is out of range.
        InvalidGraceMs = "invalid_grace_ms",
        /// A tag key breaks the namespaced rule.
        InvalidTagKey = "invalid_tag_key",
        /// Stored bytes do not decode, or a handle was forged or altered. Never retry.
        Corruption = "corruption",
        /// A handle of another backend.
        HandleFromOtherBackend = "handle_from_other_backend",
        /// A blocking reason that cannot be used here.
        InvalidBlockingReason = "invalid_blocking_reason",
    }
}

/// Who owned an execution last, for a caller whose reply was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct NotActive {
    /// How it ended, if it did.
    pub terminal_outcome: TerminalOutcome,
    /// The last epoch granted.
    pub lease_epoch: LeaseEpoch,
    /// Where it is now.
    pub lifecycle_phase: LifecyclePhase,
    /// The last attempt, unless a retry is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<AttemptId>,
}

/// State moved under the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContentionKind {
    /// The attempt is interrupted: take the resumed-claim path.
    UseClaimResumedExecution,
    /// The attempt is not interrupted: take the fresh-claim path.
    NotAResumedExecution,
    /// The state changed since the grant; ask for a new one.
    ExecutionNotLeaseable,
    /// Another owner.
    LeaseConflict,
    /// No grant, or one of another worker.
    InvalidClaimGrant,
    /// The grant is past its expiry.
    ClaimGrantExpired,
    /// No such waitpoint.
    WaitpointNotFound,
    /// The graph changed; read it again.
    StaleGraphRevision,
    /// The execution is not active; the detail lets a caller recognise its own success.
    ExecutionNotActive(NotActive),
    /// Not runnable now.
    ExecutionNotEligible,
    /// Not in its lane's eligible index.
    ExecutionNotInEligibleSet,
    /// Nothing to revoke or to build upon.
    NoActiveLease,
    /// Commits kept conflicting until the retry budget was spent.
    RetryExhausted,
}

/// A clash with an existing record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictKind {
    /// The edge id is taken; the detail shows by what.
    DependencyAlreadyExists {
        /// The edge that is there.
        existing: Box<EdgeSnapshot>,
    },
    /// The edge would close a cycle, or the search for one grew too large.
    CycleDetected,
    /// Both ends are the same.
    SelfReferencingEdge,
    /// A member of another flow.
    ExecutionAlreadyInFlow,
    /// An open waitpoint has that id or key.
    WaitpointAlreadyExists,
    /// The key id holds another secret.
    RotationConflict {
        /// The key id.
        kid: String,
    },
    /// An attempt is running.
    ActiveAttemptExists,
    /// Something else has the id that this would get.
    IdTaken,
}

words! {
    /// A legal state that does not allow what was asked.
    pub enum StateKind {
        /// Lease, epoch or attempt differ from the stored ones.
        StaleLease = "stale_lease",
        /// The lease ran out.
        LeaseExpired = "lease_expired",
        /// The lease was revoked.
        LeaseRevoked = "lease_revoked",
        /// Not suspended.
        ExecutionNotSuspended = "execution_not_suspended",
        /// Suspended already.
        AlreadySuspended = "already_suspended",
        /// The waitpoint takes nothing any more.
        WaitpointClosed = "waitpoint_closed",
        /// The execution cannot be signalled.
        TargetNotSignalable = "target_not_signalable",
        /// A live grant exists.
        GrantAlreadyExists = "grant_already_exists",
        /// The waitpoint is not pending.
        WaitpointNotPending = "waitpoint_not_pending",
        /// The pending waitpoint ran out.
        PendingWaitpointExpired = "pending_waitpoint_expired",
        /// Only a terminal execution can be replayed.
        ExecutionNotTerminal = "execution_not_terminal",
        /// Replayed as often as allowed.
        MaxReplaysExhausted = "max_replays_exhausted",
        /// The stream takes no more frames.
        StreamClosed = "stream_closed",
        /// The appender does not own the attempt.
        StaleOwnerCannotAppend = "stale_owner_cannot_append",
        /// Not a member of the flow.
        ExecutionNotInFlow = "execution_not_in_flow",
        /// The flow is over.
        FlowAlreadyTerminal = "flow_already_terminal",
        /// The lane takes no new work: it drains or is disabled.
        LaneClosed = "lane_closed",
    }
}

words! {
    /// Internal invariants whose breach is reported.
    pub enum BugKind {
        /// A record pointed at another that must exist.
        DanglingReference = "dangling_reference",
    }
}

/// Every failure of an operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The addressed record is missing.
    #[error("{entity} not found")]
    NotFound {
        /// What is missing.
        entity: Entity,
    },
    /// Input was rejected, or stored data does not decode.
    #[error("{kind}: {detail}")]
    Validation {
        /// Why.
        kind: ValidationKind,
        /// Which field, code or token.
        detail: String,
    },
    /// State moved under the caller.
    #[error("{}", .0.code())]
    Contention(ContentionKind),
    /// A clash with an existing record.
    #[error("{}", .0.code())]
    Conflict(ConflictKind),
    /// A legal state that does not allow this.
    #[error("{0}")]
    State(StateKind),
    /// An internal invariant is broken.
    #[error("bug: {0}")]
    Bug(BugKind),
    /// Input, output or driver failure.
    #[error("{backend} transport: {source}")]
    Transport {
        /// Which backend.
        backend: &'static str,
        /// Whether the same call may succeed later.
        retryable: bool,
        /// The driver's error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A backend does not implement the operation.
    #[error("{op} is not available on this backend")]
    Unavailable {
        /// The operation.
        op: &'static str,
    },
    /// A ceiling of this process was reached.
    #[error("{pool} is exhausted: at most {max} at once")]
    ResourceExhausted {
        /// Which pool.
        pool: &'static str,
        /// Its size.
        max: u32,
        /// When to try again.
        retry_after_ms: Option<u32>,
    },
    /// The operation took longer than it may.
    #[error("{op} timed out after {elapsed:?}")]
    Timeout {
        /// The operation.
        op: &'static str,
        /// How long it was given.
        elapsed: Duration,
    },
    /// A subscription lost its store; subscribe again from the cursor.
    #[error("subscription disconnected")]
    StreamDisconnected {
        /// Position after the last delivered event.
        cursor: EventCursor,
    },
    /// A subscription cannot keep up.
    #[error("subscription falls behind")]
    StreamBackpressure,
    /// Events at the cursor were trimmed.
    #[error("cursor_expired: events before the given resume point were trimmed")]
    CursorExpired {
        /// The oldest position that can still be read.
        resume_from: EventCursor,
    },
    /// Another error with the place it came from.
    #[error("{context}: {source}")]
    Contextual {
        /// The error.
        source: Box<EngineError>,
        /// The call site.
        context: String,
    },
}

impl ContentionKind {
    /// The wire code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UseClaimResumedExecution => "use_claim_resumed_execution",
            Self::NotAResumedExecution => "not_a_resumed_execution",
            Self::ExecutionNotLeaseable => "execution_not_leaseable",
            Self::LeaseConflict => "lease_conflict",
            Self::InvalidClaimGrant => "invalid_claim_grant",
            Self::ClaimGrantExpired => "claim_grant_expired",
            Self::WaitpointNotFound => "waitpoint_not_found",
            Self::StaleGraphRevision => "stale_graph_revision",
            Self::ExecutionNotActive(_) => "execution_not_active",
            Self::ExecutionNotEligible => "execution_not_eligible",
            Self::ExecutionNotInEligibleSet => "execution_not_in_eligible_set",
            Self::NoActiveLease => "no_active_lease",
            Self::RetryExhausted => "retry_exhausted",
        }
    }
}

impl ConflictKind {
    /// The wire code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::DependencyAlreadyExists { .. } => "dependency_already_exists",
            Self::CycleDetected => "cycle_detected",
            Self::SelfReferencingEdge => "self_referencing_edge",
            Self::ExecutionAlreadyInFlow => "execution_already_in_flow",
            Self::WaitpointAlreadyExists => "waitpoint_already_exists",
            Self::RotationConflict { .. } => "rotation_conflict",
            Self::ActiveAttemptExists => "active_attempt_exists",
            Self::IdTaken => "id_taken",
        }
    }
}

impl StateKind {
    /// What a caller can do about it.
    #[must_use]
    pub const fn class(self) -> ErrorClass {
        match self {
            Self::ExecutionNotSuspended
            | Self::AlreadySuspended
            | Self::WaitpointClosed
            | Self::GrantAlreadyExists
            | Self::WaitpointNotPending
            | Self::PendingWaitpointExpired => ErrorClass::Informational,
            _ => ErrorClass::Terminal,
        }
    }
}

impl EngineError {
    /// Input that names a wrong field or code.
    pub fn invalid(detail: impl fmt::Display) -> Self {
        Self::validation(ValidationKind::InvalidInput, detail)
    }

    /// Any refusal of input or stored data.
    pub fn validation(kind: ValidationKind, detail: impl fmt::Display) -> Self {
        Self::Validation { kind, detail: detail.to_string() }
    }

    /// A missing record.
    #[must_use]
    pub const fn not_found(entity: Entity) -> Self {
        Self::NotFound { entity }
    }

    /// The stable code: the kind for typed families, else the family.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::Validation { kind, .. } => kind.as_str(),
            Self::Contention(kind) => kind.code(),
            Self::Conflict(kind) => kind.code(),
            Self::State(kind) => kind.as_str(),
            Self::Bug(_) => "bug",
            Self::Transport { .. } => "transport",
            Self::Unavailable { .. } => "unavailable",
            Self::ResourceExhausted { .. } => "resource_exhausted",
            Self::Timeout { .. } => "timeout",
            Self::StreamDisconnected { .. } => "stream_disconnected",
            Self::StreamBackpressure => "stream_backpressure",
            Self::CursorExpired { .. } => "cursor_expired",
            Self::Contextual { source, .. } => source.code(),
        }
    }

    /// What a caller can do about it.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Contention(_) | Self::ResourceExhausted { .. } | Self::Transport { retryable: true, .. } => {
                ErrorClass::Retryable
            }
            Self::State(kind) => kind.class(),
            Self::Bug(_) => ErrorClass::Bug,
            Self::StreamBackpressure => ErrorClass::Informational,
            Self::Contextual { source, .. } => source.class(),
            _ => ErrorClass::Terminal,
        }
    }

    /// Adds the call site to errors of the environment; typed refusals pass unchanged so that callers can match them.
    #[must_use]
    pub fn with_context(self, context: impl Into<String>) -> Self {
        match self {
            Self::Transport { .. }
            | Self::Unavailable { .. }
            | Self::ResourceExhausted { .. }
            | Self::Timeout { .. }
            | Self::Contextual { .. } => Self::Contextual { source: Box::new(self), context: context.into() },
            typed => typed,
        }
    }
}

impl From<ContentionKind> for EngineError {
    fn from(kind: ContentionKind) -> Self {
        Self::Contention(kind)
    }
}

impl From<ConflictKind> for EngineError {
    fn from(kind: ConflictKind) -> Self {
        Self::Conflict(kind)
    }
}

impl From<StateKind> for EngineError {
    fn from(kind: StateKind) -> Self {
        Self::State(kind)
    }
}

impl From<crate::ids::NameError> for EngineError {
    fn from(error: crate::ids::NameError) -> Self {
        Self::invalid(error)
    }
}

impl From<crate::partition::PartitionKeyParseError> for EngineError {
    fn from(error: crate::partition::PartitionKeyParseError) -> Self {
        Self::invalid(error)
    }
}

impl From<crate::ids::PartialFence> for EngineError {
    fn from(error: crate::ids::PartialFence) -> Self {
        Self::invalid(error)
    }
}

/// An error as data, where one answer carries several outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct ErrorSummary {
    /// The stable code.
    pub code: String,
    /// What a caller can do about it.
    pub class: ErrorClass,
    /// For people.
    pub message: String,
}

impl From<&EngineError> for ErrorSummary {
    fn from(error: &EngineError) -> Self {
        Self { code: error.code().to_owned(), class: error.class(), message: error.to_string() }
    }
}
