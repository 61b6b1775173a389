//! Parking an execution until a condition on signals holds, an operator resumes it, or its timeout strikes.

mod args;
mod condition;
mod resumption;

pub use args::{
    AdditionalWaitpointBinding, ListSuspendedPage, NO_TIMEOUT_MS, ResumeExecutionArgs, ResumeExecutionResult,
    ResumePolicy, ResumeSignal, ResumeTrigger, SUSPEND_DEDUP_MS_MAX, SuspendArgs, SuspendOutcome,
    SuspendOutcomeDetails, SuspendedCursor, SuspendedExecutionEntry, SuspensionReasonCode, SuspensionRequester,
    TIMEOUT_SIGNAL_NAME, TIMEOUT_SOURCE_TYPE, WaitpointBinding, suspend_dedup_ttl_ms,
};
pub use condition::{ConditionKind, CountKind, ResumeCondition, SignalMatcher};
pub use resumption::Resumption;

use async_trait::async_trait;

use super::layer::forward;
use crate::error::{EngineError, Result};
use crate::handle::Handle;
use crate::ids::{ExecutionId, FenceTriple};
use crate::partition::PartitionKey;
use crate::time::TimestampMs;

/// Parks executions and wakes them.
#[async_trait]
pub trait Suspension: Send + Sync {
    /// Releases the lease and waits for the condition; `AlreadySatisfied` keeps it when buffered signals suffice.
    ///
    /// Errors in order: `AlreadySuspended` for a suspended handle, `InvalidInput` with the code of the broken rule, a
    /// bad handle, the ownership fence, `InvalidLeaseForSuspend`, `AlreadySuspended`, then those of the bindings.
    /// Repeated with the same idempotency key it answers as the first time, whatever happened since.
    async fn suspend(&self, handle: &Handle, args: SuspendArgs) -> Result<SuspendOutcome>;

    /// [`suspend`](Self::suspend), fenced by lease, epoch and attempt instead of a handle.
    ///
    /// Errors in order: `InvalidInput` with the code of the broken rule, `NotFound`, `fence_required` or
    /// `partial_fence_triple`, then as for a handle.
    async fn suspend_by_triple(
        &self,
        _execution_id: ExecutionId,
        _fence: FenceTriple,
        _args: SuspendArgs,
    ) -> Result<SuspendOutcome> {
        Err(EngineError::Unavailable { op: "suspend_by_triple" })
    }

    /// The signals that satisfied the condition from which this handle's attempt resumed, in order of arrival.
    ///
    /// Empty when the attempt never resumed; no lease is needed. A resume by timeout shows the timeout's own signal.
    async fn observe_signals(&self, handle: &Handle) -> Result<Vec<ResumeSignal>>;

    /// The suspensions since the execution was created or last replayed that ended in a resume, oldest first, after an ordinal if one is
    /// given, each with the signals that satisfied it as [`observe_signals`](Self::observe_signals) shows them. Whoever runs the
    /// execution finds every earlier answer here, also when the attempt that got it was lost. A limit over 1000 counts as 1000.
    ///
    /// Errors: `NotFound(execution)`.
    async fn list_resumptions(
        &self,
        _execution_id: ExecutionId,
        _after: Option<u32>,
        _limit: u32,
    ) -> Result<Vec<Resumption>> {
        Err(EngineError::Unavailable { op: "list_resumptions" })
    }

    /// Resumes regardless of the condition and closes the suspension with all its waitpoints.
    ///
    /// Errors in order: `InvalidInput` for an unknown trigger, `NotFound`, `ExecutionNotSuspended` (a repetition too).
    async fn resume_execution(&self, _args: ResumeExecutionArgs) -> Result<ResumeExecutionResult> {
        Err(EngineError::Unavailable { op: "resume_execution" })
    }

    /// Applies the timeout behaviour of a suspension that is due; otherwise does nothing, so it can be repeated.
    async fn expire_suspension(&self, _execution_id: ExecutionId, _now: TimestampMs) -> Result<()> {
        Err(EngineError::Unavailable { op: "expire_suspension" })
    }

    /// Suspended executions of one partition after the cursor, soonest timeout first; a limit of 0 gives an empty page.
    ///
    /// `InvalidInput` when the partition key does not parse.
    async fn list_suspended(
        &self,
        _partition: &PartitionKey,
        _cursor: Option<SuspendedCursor>,
        _limit: usize,
    ) -> Result<ListSuspendedPage> {
        Err(EngineError::Unavailable { op: "list_suspended" })
    }
}

forward! { Suspension,
    suspend(handle: &Handle, args: SuspendArgs) -> SuspendOutcome => SafeIfNamed(args.dedup_key().is_some());
    suspend_by_triple(execution_id: ExecutionId, fence: FenceTriple, args: SuspendArgs) -> SuspendOutcome
        => SafeIfNamed(args.dedup_key().is_some());
    observe_signals(handle: &Handle) -> Vec<ResumeSignal> => Safe;
    list_resumptions(execution_id: ExecutionId, after: Option<u32>, limit: u32) -> Vec<Resumption> => Safe;
    resume_execution(args: ResumeExecutionArgs) -> ResumeExecutionResult => OnlyIfUnsent;
    expire_suspension(execution_id: ExecutionId, now: TimestampMs) -> () => Safe;
    list_suspended(partition: &PartitionKey, cursor: Option<SuspendedCursor>, limit: usize) -> ListSuspendedPage
        => Safe;
}
