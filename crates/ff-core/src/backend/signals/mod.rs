//! Waitpoints, the signals sent to them, and the secrets that sign their tokens.

mod args;

pub use args::{
    APPROVAL_CATEGORY, APPROVAL_SOURCE_TYPE, DeliverApprovalSignalArgs, DeliverSignalArgs, DeliverSignalResult,
    ListPendingWaitpointsArgs, ListPendingWaitpointsResult, PENDING_WAITPOINTS_LIMIT, PENDING_WAITPOINTS_LIMIT_MAX,
    PendingWaitpoint, PendingWaitpointInfo, RotateWaitpointHmacSecretAllArgs, RotateWaitpointHmacSecretAllEntry,
    RotateWaitpointHmacSecretAllResult, RotateWaitpointHmacSecretOutcome, SIGNAL_DEDUP_TTL_MS, SIGNAL_MAXLEN,
    SIGNAL_PAYLOAD_BYTES_MAX, SecretText, SeedOutcome, SeedWaitpointHmacSecretArgs, SignalEffect,
};

use std::time::Duration;

use async_trait::async_trait;

use super::layer::forward;
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{ExecutionId, WaitpointId};
use crate::partition::PartitionKey;
use crate::time::TimestampMs;
use crate::token::WaitpointToken;

/// Takes signals for executions, and keeps the secrets that prove a sender may send them.
#[async_trait]
pub trait Signals: Send + Sync {
    /// Issues a waitpoint and its token ahead of a suspend; signals are buffered until then. The lease stays.
    ///
    /// Errors in order: `InvalidInput` for an empty key or no duration, the ownership fence, `WaitpointAlreadyExists`
    /// when the execution has an open waitpoint of this key, `InvalidInput` without a signing secret. Not idempotent:
    /// a lost answer leaves a waitpoint that runs out unused.
    async fn create_waitpoint(
        &self,
        handle: &Handle,
        waitpoint_key: &str,
        expires_in: Duration,
    ) -> Result<PendingWaitpoint>;

    /// The token of a waitpoint, open or not; `None` when there is no such waitpoint. For trusted services only.
    ///
    /// `InvalidInput` when the partition key does not parse.
    async fn read_waitpoint_token(
        &self,
        _partition: &PartitionKey,
        _waitpoint_id: WaitpointId,
    ) -> Result<Option<WaitpointToken>> {
        Err(EngineError::Unavailable { op: "read_waitpoint_token" })
    }

    /// Stores a signal and resumes the execution when the condition holds; buffers for a pending waitpoint.
    ///
    /// Errors in order: `NotFound`; `InvalidToken`, the same for a wrong token, a missing and a foreign waitpoint;
    /// `PayloadTooLarge`; `InvalidInput` for an empty name; `TargetNotSignalable` when the execution is over;
    /// `WaitpointClosed`; `TargetNotSignalable` when the waitpoint's suspension is not current; `SignalLimitExceeded`.
    /// A repetition by idempotency key or signal id is a `Duplicate` even after the execution moved on.
    async fn deliver_signal(&self, _args: DeliverSignalArgs) -> Result<DeliverSignalResult> {
        Err(EngineError::Unavailable { op: "deliver_signal" })
    }

    /// Delivers a person's decision; the engine presents the token and the approver is the source.
    ///
    /// Errors in order: `NotFound` for the execution, `InvalidInput` `lane_mismatch`, `NotFound` for the waitpoint,
    /// then as [`deliver_signal`](Self::deliver_signal).
    async fn deliver_approval_signal(&self, _args: DeliverApprovalSignalArgs) -> Result<DeliverSignalResult> {
        Err(EngineError::Unavailable { op: "deliver_approval_signal" })
    }

    /// The pending and active waitpoints of an execution, by id; `NotFound` when there is no such execution.
    async fn list_pending_waitpoints(&self, _args: ListPendingWaitpointsArgs) -> Result<ListPendingWaitpointsResult> {
        Err(EngineError::Unavailable { op: "list_pending_waitpoints" })
    }

    /// Closes a waitpoint that no suspension will use; its signals stay. A closed one stays closed.
    ///
    /// Closing an active waitpoint resumes nothing. `WaitpointNotFound` when it is not the execution's.
    async fn close_waitpoint(
        &self,
        _execution_id: ExecutionId,
        _waitpoint_id: WaitpointId,
        _now: TimestampMs,
    ) -> Result<()> {
        Err(EngineError::Unavailable { op: "close_waitpoint" })
    }

    /// Makes a new secret sign; tokens of the replaced one verify until its grace ends. A repetition is a `Noop`.
    ///
    /// Errors in order: `InvalidKid`, `InvalidSecretHex`, `InvalidGraceMs`; everything else is said per entry.
    async fn rotate_waitpoint_hmac_secret_all(
        &self,
        _args: RotateWaitpointHmacSecretAllArgs,
    ) -> Result<RotateWaitpointHmacSecretAllResult> {
        Err(EngineError::Unavailable { op: "rotate_waitpoint_hmac_secret_all" })
    }

    /// Installs the first secret and never replaces one, so that every start of a process may call it.
    ///
    /// `InvalidInput` when the name is empty, the secret is not 64 hex digits, or another secret signs.
    async fn seed_waitpoint_hmac_secret(&self, _args: SeedWaitpointHmacSecretArgs) -> Result<SeedOutcome> {
        Err(EngineError::Unavailable { op: "seed_waitpoint_hmac_secret" })
    }
}

forward! { Signals,
    create_waitpoint(handle: &Handle, waitpoint_key: &str, expires_in: Duration) -> PendingWaitpoint => OnlyIfUnsent;
    read_waitpoint_token(partition: &PartitionKey, waitpoint_id: WaitpointId) -> Option<WaitpointToken> => Safe;
    deliver_signal(args: DeliverSignalArgs) -> DeliverSignalResult
        => SafeIfNamed(args.signal_id.is_some() || args.dedup_key().is_some());
    deliver_approval_signal(args: DeliverApprovalSignalArgs) -> DeliverSignalResult
        => SafeIfNamed(args.dedup_key().is_some());
    list_pending_waitpoints(args: ListPendingWaitpointsArgs) -> ListPendingWaitpointsResult => Safe;
    close_waitpoint(execution_id: ExecutionId, waitpoint_id: WaitpointId, now: TimestampMs) -> () => Safe;
    rotate_waitpoint_hmac_secret_all(args: RotateWaitpointHmacSecretAllArgs) -> RotateWaitpointHmacSecretAllResult
        => Safe;
    seed_waitpoint_hmac_secret(args: SeedWaitpointHmacSecretArgs) -> SeedOutcome => Safe;
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;

    use super::*;
    use crate::backend::Suspension;
    use crate::backend::inspection::forwarding::Recorder;
    use crate::backend::layer::{BoxFuture, Layered};
    use crate::backend::suspension::{ResumeExecutionArgs, ResumeSignal, SuspendArgs, SuspendOutcome};
    use crate::ids::FenceTriple;

    /// A backend of third parties that implements nothing.
    struct Bare;

    #[async_trait]
    impl Suspension for Bare {
        async fn suspend(&self, _handle: &Handle, _args: SuspendArgs) -> Result<SuspendOutcome> {
            Err(EngineError::Unavailable { op: "suspend" })
        }

        async fn observe_signals(&self, _handle: &Handle) -> Result<Vec<ResumeSignal>> {
            Err(EngineError::Unavailable { op: "observe_signals" })
        }
    }

    #[async_trait]
    impl Signals for Bare {
        async fn create_waitpoint(&self, _: &Handle, _: &str, _: Duration) -> Result<PendingWaitpoint> {
            Err(EngineError::Unavailable { op: "create_waitpoint" })
        }
    }

    fn refused<T>(mut call: BoxFuture<'_, Result<T>>) -> &'static str {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(EngineError::Unavailable { op })) => op,
            _ => panic!("not refused at once"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]
        #[test]
        fn a_layer_sees_every_operation_under_its_own_name(
            handle: Handle,
            suspend: SuspendArgs,
            resume: ResumeExecutionArgs,
            signal: DeliverSignalArgs,
            approval: DeliverApprovalSignalArgs,
            seed: SeedWaitpointHmacSecretArgs,
            rotate: RotateWaitpointHmacSecretAllArgs,
            partition: PartitionKey,
            id: ExecutionId,
            waitpoint: WaitpointId,
        ) {
            let backend = Layered { inner: Bare, layer: Recorder::default() };
            let now = TimestampMs::ZERO;
            let refusals = [
                refused(backend.suspend(&handle, suspend.clone())),
                refused(backend.suspend_by_triple(id, FenceTriple::NONE, suspend)),
                refused(backend.observe_signals(&handle)),
                refused(backend.resume_execution(resume)),
                refused(backend.expire_suspension(id, now)),
                refused(backend.list_suspended(&partition, None, 1)),
                refused(backend.create_waitpoint(&handle, "key", Duration::from_secs(1))),
                refused(backend.read_waitpoint_token(&partition, waitpoint)),
                refused(backend.deliver_signal(signal)),
                refused(backend.deliver_approval_signal(approval)),
                refused(backend.list_pending_waitpoints(ListPendingWaitpointsArgs::new(id))),
                refused(backend.close_waitpoint(id, waitpoint, now)),
                refused(backend.rotate_waitpoint_hmac_secret_all(rotate)),
                refused(backend.seed_waitpoint_hmac_secret(seed)),
            ];
            let named = [
                "suspend",
                "suspend_by_triple",
                "observe_signals",
                "resume_execution",
                "expire_suspension",
                "list_suspended",
                "create_waitpoint",
                "read_waitpoint_token",
                "deliver_signal",
                "deliver_approval_signal",
                "list_pending_waitpoints",
                "close_waitpoint",
                "rotate_waitpoint_hmac_secret_all",
                "seed_waitpoint_hmac_secret",
            ];
            prop_assert_eq!(refusals, named);
            prop_assert_eq!(backend.layer.take(), named);
        }
    }
}
