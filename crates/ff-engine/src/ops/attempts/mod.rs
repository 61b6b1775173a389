//! An attempt reports, ends or parks. The handle form and the fenced form of a call are two ways to say who acts.

mod actor;
mod cancel;
mod complete;
mod fail;
mod park;
mod progress;
mod steps;

use std::collections::BTreeMap;

use async_trait::async_trait;
use ff_core::backend::Attempts;
use ff_core::backend::attempts::{
    CancelExecutionArgs, CancelExecutionResult, CompleteExecutionArgs, CompleteExecutionResult, CompleteManyItem,
    CompleteManyOutcome, FailExecutionArgs, FailExecutionResult, FailOutcome, FailureReason,
};
use ff_core::error::ValidationKind;
use ff_core::handle::Handle;
use ff_core::ids::{ExecutionId, NameError, check_free_string};
use ff_core::policy::RetryPolicy;
use ff_core::rules::fence::FenceRule;
use ff_core::rules::retry::FailureClass;
use ff_core::state::PublicState;
use ff_core::{Blob, EngineError, Result, TimestampMs};

pub(crate) use actor::{Actor, Admitted};
use cancel::{Cancel, Proof};
use complete::Complete;
use fail::Fail;
use park::{Park, Pause};
use progress::Report;
use steps::SaveStep;

use super::inspection::tags::{SetTag, Tag};
use crate::engine::Engine;
use crate::store::Store;
use crate::timers::settlement;

#[async_trait]
impl<S: Store> Attempts for Engine<S> {
    async fn progress(&self, handle: &Handle, percent: Option<u8>, message: Option<&str>) -> Result<()> {
        if percent.is_some_and(|percent| percent > 100) {
            return Err(EngineError::invalid("percent is more than 100"));
        }
        check_free_string("message", message.unwrap_or_default())?;
        let owner = self.open_handle(handle)?;
        self.run(Report { owner, percent, message: message.map(str::to_owned) }).await
    }

    async fn tag(&self, handle: &Handle, key: &str, value: &str) -> Result<()> {
        let tag = Tag::new(key, value)?;
        let owner = self.open_handle(handle)?;
        self.run(SetTag { execution: owner.execution_id, tag, owner: Some(owner) }).await
    }

    async fn complete(&self, handle: &Handle, result_payload: Option<Blob>) -> Result<()> {
        let actor = Actor::by_handle(&self.open_handle(handle)?);
        self.complete_as(actor, result_payload).await
    }

    async fn complete_execution(&self, args: CompleteExecutionArgs) -> Result<CompleteExecutionResult> {
        self.check_partition(args.execution_id)?;
        let rule = FenceRule::UnlessOverride;
        let actor = Actor::by_fence(args.execution_id, args.fence, args.attempt_index, &args.source, rule)?;
        self.complete_as(actor, args.result_payload).await?;
        let public_state = PublicState::Completed;
        Ok(CompleteExecutionResult::Completed { execution_id: args.execution_id, public_state })
    }

    async fn complete_many(&self, items: Vec<CompleteManyItem>) -> Result<Vec<CompleteManyOutcome>> {
        let completions = items.into_iter().map(|item| async move {
            let completed = self.complete(&item.handle, item.result_payload).await;
            CompleteManyOutcome::from(completed)
        });
        Ok(futures_util::future::join_all(completions).await)
    }

    async fn fail(&self, handle: &Handle, reason: FailureReason, class: FailureClass) -> Result<FailOutcome> {
        check_free_string("message", &reason.message)?;
        let fail = Fail {
            actor: Actor::by_handle(&self.open_handle(handle)?),
            reason: reason.message,
            class,
            category: class.as_str().to_owned(),
            detail: reason.detail,
            detail_bytes_max: self.settings.limits.result_bytes,
            policy: None,
            uniform: self.settings.entropy.factor(),
        };
        Ok(match self.fail_as(fail).await? {
            FailExecutionResult::RetryScheduled { delay_until, .. } => FailOutcome::RetryScheduled { delay_until },
            FailExecutionResult::TerminalFailed => FailOutcome::TerminalFailed,
        })
    }

    async fn fail_execution(&self, args: FailExecutionArgs) -> Result<FailExecutionResult> {
        self.check_partition(args.execution_id)?;
        check_free_string("failure_reason", &args.failure_reason)?;
        check_free_string("failure_category", &args.failure_category)?;
        let rule = FenceRule::UnlessOverride;
        let actor = Actor::by_fence(args.execution_id, args.fence, args.attempt_index, &args.source, rule)?;
        let policy = match args.retry_policy_json.as_str() {
            "" => None,
            text => Some(RetryPolicy::from_json(text)?),
        };
        let fail = Fail {
            actor,
            reason: args.failure_reason,
            class: FailureClass::of_category(&args.failure_category),
            category: args.failure_category,
            detail: None,
            detail_bytes_max: self.settings.limits.result_bytes,
            policy,
            uniform: self.settings.entropy.factor(),
        };
        self.fail_as(fail).await
    }

    async fn cancel(&self, handle: &Handle, reason: &str) -> Result<()> {
        check_free_string("reason", reason)?;
        let owner = self.open_handle(handle)?;
        let cancel = Cancel {
            execution_id: owner.execution_id,
            reason: reason.to_owned(),
            by: owner.worker_id.to_string(),
            proof: Proof::Owner(Actor::by_handle(&owner)),
        };
        self.cancel_as(cancel).await
    }

    async fn cancel_execution(&self, args: CancelExecutionArgs) -> Result<CancelExecutionResult> {
        self.check_partition(args.execution_id)?;
        check_free_string("reason", &args.reason)?;
        check_free_string("source", args.source.as_str())?;
        let cancel = Cancel {
            execution_id: args.execution_id,
            reason: args.reason,
            by: args.source.as_str().to_owned(),
            proof: Proof::Fence { fence: args.fence, source: args.source },
        };
        self.cancel_as(cancel).await?;
        let public_state = PublicState::Cancelled;
        Ok(CancelExecutionResult::Cancelled { execution_id: args.execution_id, public_state })
    }

    async fn delay(&self, handle: &Handle, delay_until: TimestampMs) -> Result<()> {
        self.park_as(handle, Pause::Until(delay_until)).await
    }

    async fn wait_children(&self, handle: &Handle) -> Result<()> {
        self.park_as(handle, Pause::Children).await
    }

    async fn save_step(&self, handle: &Handle, name: &str, value: Blob) -> Result<Blob> {
        if name.is_empty() {
            return Err(NameError::Empty { what: "name" }.into());
        }
        check_free_string("name", name)?;
        let owner = self.open_handle(handle)?;
        let value_bytes_max = self.settings.limits.result_bytes;
        self.run(SaveStep { owner, name: name.to_owned(), value, value_bytes_max }).await
    }

    async fn read_steps(&self, execution_id: ExecutionId) -> Result<BTreeMap<String, Blob>> {
        steps::read(&*self.store, execution_id).await
    }
}

impl<S: Store> Engine<S> {
    async fn complete_as(&self, actor: Actor, result: Option<Blob>) -> Result<()> {
        let id = actor.execution_id;
        let complete = Complete { actor, result, result_bytes_max: self.settings.limits.result_bytes };
        let owes = self.run(complete).await??;
        self.settle(id, owes).await;
        Ok(())
    }

    async fn fail_as(&self, fail: Fail) -> Result<FailExecutionResult> {
        let id = fail.actor.execution_id;
        let failed = self.run(fail).await??;
        self.settle(id, failed.owes).await;
        Ok(failed.outcome)
    }

    async fn cancel_as(&self, cancel: Cancel) -> Result<()> {
        let id = cancel.execution_id;
        let owes = self.run(cancel).await??;
        self.settle(id, owes).await;
        Ok(())
    }

    async fn park_as(&self, handle: &Handle, pause: Pause) -> Result<()> {
        let actor = Actor::by_handle(&self.open_handle(handle)?);
        let id = actor.execution_id;
        let owes = self.run(Park { actor, pause }).await??;
        self.settle(id, owes).await;
        Ok(())
    }

    /// Settles an ownership that ended right away, if quotas are owed anything and the engine is set up so; what fails here comes
    /// due on its own.
    pub(crate) async fn settle(&self, execution: ExecutionId, owes: bool) {
        if owes && self.settings.settle_at_once {
            settlement::settle_now(self, execution).await;
        }
    }
}

/// Refuses bytes over a limit.
fn check_size(what: &str, bytes: Option<&Blob>, max: usize) -> Result<()> {
    match bytes.map_or(0, |bytes| bytes.len()) {
        len if len > max => Err(EngineError::validation(
            ValidationKind::PayloadTooLarge,
            format_args!("{what}: {len} bytes, at most {max}"),
        )),
        _ => Ok(()),
    }
}
