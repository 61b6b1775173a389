//! Parking executions until a condition on signals holds, and waking them.

mod expire;
mod observe;
mod resume;
mod resumptions;
mod suspend;

use ff_core::backend::Suspension;
use ff_core::backend::inspection::PAGE_LIMIT_MAX;
use ff_core::backend::suspension::{
    ListSuspendedPage, ResumeExecutionArgs, ResumeExecutionResult, ResumeSignal, Resumption, SuspendArgs,
    SuspendOutcome, SuspendedCursor, SuspendedExecutionEntry,
};
use ff_core::error::StateKind;
use ff_core::handle::{Handle, HandleKind};
use ff_core::ids::{AttemptIndex, ExecutionId, FenceTriple, SignalId};
use ff_core::partition::PartitionKey;
use ff_core::rules::conditions::validate_suspend;
use ff_core::{EngineError, Result, TimestampMs};

use crate::engine::Engine;
use crate::index::{Bounds, Index, Position};
use crate::key::Key;
use crate::lifecycle::BOUND_WAITPOINTS_MAX;
use crate::records::{Execution, Record};
use crate::store::Store;
use crate::timers::settlement::settle_now;
use crate::timers::witness::changes;
use crate::verbs::list_of;

use expire::Expire;
use resume::Resume;
use suspend::Suspend;

/// Refuses a delay that no store could add to a time.
pub(super) fn check_delay(what: &str, ms: u64) -> Result<()> {
    match i64::try_from(ms) {
        Ok(_) => Ok(()),
        Err(_) => Err(EngineError::invalid(format_args!("{what} is out of range"))),
    }
}

impl<S: Store> Engine<S> {
    /// Applies the timeout of a suspension, if it is open and due; says whether it was.
    pub(crate) async fn time_out_suspension(&self, execution: ExecutionId, now: TimestampMs) -> Result<bool> {
        let signal = SignalId::from_uuid(self.mint().await?);
        changes(self, Key::execution(execution), Expire { execution, now, signal }).await
    }

    async fn check_suspend(&self, args: &SuspendArgs) -> Result<()> {
        validate_suspend(args, self.store.now().await?)?;
        check_delay("resume_delay_ms", args.resume_policy.resume_delay_ms.unwrap_or(0))?;
        if args.waitpoints.len() > BOUND_WAITPOINTS_MAX {
            return Err(EngineError::invalid(format_args!(
                "too_many_waitpoints: {}, at most {BOUND_WAITPOINTS_MAX}",
                args.waitpoints.len()
            )));
        }
        Ok(())
    }

    async fn suspend_fenced(
        &self,
        execution: ExecutionId,
        fence: FenceTriple,
        attempt_index: Option<AttemptIndex>,
        args: SuspendArgs,
    ) -> Result<SuspendOutcome> {
        let (keyring, seal_key) = (self.keyring().await?, self.seal_key().clone());
        let op = Suspend { execution, fence, attempt_index, args, keyring, seal_key, backend: S::TAG };
        let done = self.run(op).await??;
        if done.owes {
            settle_now(self, execution).await;
        }
        Ok(done.outcome)
    }

    async fn suspended_entries(&self, executions: &[Execution]) -> Result<Vec<SuspendedExecutionEntry>> {
        let open: Vec<_> = executions.iter().filter_map(|found| Some((found, found.suspension?))).collect();
        let keys: Vec<Key> = open.iter().map(|(found, ordinal)| Key::suspension(found.id, *ordinal)).collect();
        let episodes = self.store.read(&keys).await?;
        Ok(open
            .into_iter()
            .zip(episodes)
            .filter_map(|((found, _), record)| match record {
                Some(Record::Suspension(episode)) => Some(SuspendedExecutionEntry {
                    execution_id: found.id,
                    timeout_at: found.suspension_timeout_at,
                    reason: episode.reason,
                }),
                _ => None,
            })
            .collect())
    }
}

#[async_trait::async_trait]
impl<S: Store> Suspension for Engine<S> {
    async fn suspend(&self, handle: &Handle, args: SuspendArgs) -> Result<SuspendOutcome> {
        if handle.kind == HandleKind::Suspended {
            self.open_handle(handle)?;
            return Err(StateKind::AlreadySuspended.into());
        }
        self.check_suspend(&args).await?;
        let payload = self.open_handle(handle)?;
        self.suspend_fenced(payload.execution_id, payload.fence().into(), Some(payload.attempt_index), args).await
    }

    async fn suspend_by_triple(
        &self,
        execution_id: ExecutionId,
        fence: FenceTriple,
        args: SuspendArgs,
    ) -> Result<SuspendOutcome> {
        self.check_suspend(&args).await?;
        self.check_partition(execution_id)?;
        self.suspend_fenced(execution_id, fence, None, args).await
    }

    async fn observe_signals(&self, handle: &Handle) -> Result<Vec<ResumeSignal>> {
        let payload = self.open_handle(handle)?;
        self.signals_of_resume(payload.execution_id, payload.attempt_index).await
    }

    async fn list_resumptions(
        &self,
        execution_id: ExecutionId,
        after: Option<u32>,
        limit: u32,
    ) -> Result<Vec<Resumption>> {
        self.resumptions(execution_id, after, limit).await
    }

    async fn resume_execution(&self, args: ResumeExecutionArgs) -> Result<ResumeExecutionResult> {
        let trigger = args.trigger()?;
        check_delay("resume_delay_ms", args.resume_delay_ms)?;
        self.check_partition(args.execution_id)?;
        let public_state =
            self.run(Resume { execution: args.execution_id, trigger, delay_ms: args.resume_delay_ms }).await?;
        Ok(ResumeExecutionResult::Resumed { public_state })
    }

    async fn expire_suspension(&self, execution_id: ExecutionId, now: TimestampMs) -> Result<()> {
        self.check_partition(execution_id)?;
        self.time_out_suspension(execution_id, now).await.map(drop)
    }

    async fn list_suspended(
        &self,
        partition: &PartitionKey,
        cursor: Option<SuspendedCursor>,
        limit: usize,
    ) -> Result<ListSuspendedPage> {
        let partition = partition.parse()?;
        let limit = limit.min(PAGE_LIMIT_MAX as usize);
        if limit == 0 {
            return Ok(ListSuspendedPage::default());
        }
        let after = cursor.map(|cursor| Position::of(cursor.timeout_at_ms, cursor.execution_id));
        let bounds = Bounds::first(limit + 1).after(after);
        let mut found: Vec<Execution> = list_of(&self.store, Index::SuspendedIn(partition), bounds).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor =
            found.last().filter(|_| more).map(|last| SuspendedCursor::at(last.suspension_timeout_at, last.id));
        Ok(ListSuspendedPage { entries: self.suspended_entries(&found).await?, next_cursor })
    }
}
