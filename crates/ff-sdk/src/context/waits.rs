//! Waiting for the outside: signals, approvals, callbacks.

use std::time::Duration;

use ff_core::Blob;
use ff_core::backend::signals::ListPendingWaitpointsArgs;
use ff_core::backend::suspension::{
    CountKind, ResumeCondition, ResumePolicy, ResumeSignal, Resumption, SignalMatcher, SuspendArgs, SuspendOutcome,
    SuspensionReasonCode, SuspensionRequester, WaitpointBinding,
};
use ff_core::error::{ConflictKind, EngineError};
use ff_core::ids::{ExecutionId, SuspensionId, WaitpointId};
use ff_core::policy::TimeoutBehavior;
use ff_core::token::WaitpointToken;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Context;
use crate::error::{TaskError, TaskResult};
use crate::handler::decode;
use crate::task::millis;

/// Resumptions read at a time.
const PAGE: u32 = 100;

/// What a handler waits for. The name is how the outside finds it; a handler that waits for the same name several times is answered in order.
#[derive(Clone, Debug)]
#[must_use = "nothing waits until the context is asked to"]
pub struct Wait {
    name: String,
    condition: Condition,
    reason: SuspensionReasonCode,
    waitpoint: Option<WaitpointId>,
    timeout: Option<Duration>,
    behavior: TimeoutBehavior,
}

#[derive(Clone, Debug)]
enum Condition {
    /// Enough signals, of any name or of this one.
    Signals { n: u32, kind: CountKind, named: Option<String> },
    /// As the engine knows it, over waitpoints of its own.
    Engine(ResumeCondition),
}

impl Wait {
    /// One signal of any name.
    pub fn signal(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            condition: Condition::Signals { n: 1, kind: CountKind::DistinctSignals, named: None },
            reason: SuspensionReasonCode::WaitingForSignal,
            waitpoint: None,
            timeout: None,
            behavior: TimeoutBehavior::Fail,
        }
    }

    /// The decision of one person; see [`Answer::is_approved`].
    pub fn approval(name: impl Into<String>) -> Self {
        Self { reason: SuspensionReasonCode::WaitingForApproval, ..Self::signal(name) }
    }

    /// What comes to a waitpoint whose token was handed out before.
    pub fn callback(callback: &Callback) -> Self {
        let reason = SuspensionReasonCode::WaitingForCallback;
        Self { reason, waitpoint: Some(callback.waitpoint_id), ..Self::signal(&callback.name) }
    }

    /// An operator who lets it go on.
    pub fn operator(name: impl Into<String>) -> Self {
        let reason = SuspensionReasonCode::WaitingForOperatorReview;
        Self { reason, condition: Condition::Engine(ResumeCondition::OperatorOnly {}), ..Self::signal(name) }
    }

    /// Any condition of the engine, all-of and counts over several waitpoints included. The outside finds each waitpoint by its key in the
    /// condition.
    pub fn matching(condition: ResumeCondition) -> Self {
        let name = condition.waitpoint_keys().first().map_or("wait", |first| *first).to_owned();
        Self { condition: Condition::Engine(condition), ..Self::signal(name) }
    }

    /// Only signals of this name count.
    pub fn named(mut self, signal: impl Into<String>) -> Self {
        if let Condition::Signals { named, .. } = &mut self.condition {
            *named = Some(signal.into());
        }
        self
    }

    /// So many different people or systems must have answered.
    pub const fn from_sources(mut self, count: u32) -> Self {
        if let Condition::Signals { n, kind, .. } = &mut self.condition {
            *n = count;
            *kind = CountKind::DistinctSources;
        }
        self
    }

    /// So many signals must have come.
    pub const fn times(mut self, count: u32) -> Self {
        if let Condition::Signals { n, kind, .. } = &mut self.condition {
            *n = count;
            *kind = CountKind::DistinctSignals;
        }
        self
    }

    /// Waits no longer than this; the execution fails then, unless said otherwise.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// When the time is over, the handler goes on with an answer that has [timed out](Answer::timed_out).
    pub const fn or_continue(mut self) -> Self {
        self.behavior = TimeoutBehavior::AutoResumeWithTimeoutSignal;
        self
    }

    /// What happens when the time is over.
    pub const fn on_timeout(mut self, behavior: TimeoutBehavior) -> Self {
        self.behavior = behavior;
        self
    }

    /// The waitpoints: first the one by which its answer is found again, then the others that the condition names.
    fn bindings(&self) -> Vec<WaitpointBinding> {
        let fresh = |key: &str| WaitpointBinding::Fresh {
            waitpoint_id: WaitpointId::from_uuid(Uuid::now_v7()),
            waitpoint_key: key.to_owned(),
        };
        let own = match self.waitpoint {
            Some(waitpoint_id) => WaitpointBinding::UseEarlier { waitpoint_id },
            None => fresh(&self.name),
        };
        let condition = self.resume_condition();
        let others = condition.waitpoint_keys().into_iter().filter(|key| *key != self.name).map(fresh);
        [own].into_iter().chain(others).collect()
    }

    fn resume_condition(&self) -> ResumeCondition {
        match &self.condition {
            Condition::Engine(condition) => condition.clone(),
            Condition::Signals { n, kind, named } => ResumeCondition::Count {
                n: *n,
                count_kind: *kind,
                matcher: named.as_ref().map(SignalMatcher::by_name),
                waitpoints: vec![self.name.clone()],
            },
        }
    }
}

/// A place where the outside can answer, as it is handed out. Whoever has it can answer once: keep it as secret as a password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// The execution that waits.
    pub execution_id: ExecutionId,
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// Its name.
    pub name: String,
    /// Proves that the sender was given it.
    pub token: WaitpointToken,
}

/// What ended a wait.
#[derive(Clone, Debug)]
pub struct Answer(Resumption);

impl Answer {
    /// The signals that ended it, in order of arrival; none when an operator did.
    #[must_use]
    pub fn signals(&self) -> &[ResumeSignal] {
        &self.0.signals
    }

    /// Whether it ended because its time was over.
    #[must_use]
    pub const fn timed_out(&self) -> bool {
        self.0.timed_out
    }

    /// Whether there are decisions, and all of them say `approved`: one that says otherwise is enough for a no, though it ends a wait for several
    /// people only together with the others.
    #[must_use]
    pub fn is_approved(&self) -> bool {
        !self.timed_out()
            && !self.signals().is_empty()
            && self.signals().iter().all(|one| one.signal_name == "approved")
    }

    /// The body of the last signal.
    ///
    /// # Errors
    /// When there is none, or it is of another type; repeating cannot help.
    pub fn body<T: DeserializeOwned>(&self) -> TaskResult<T> {
        let bytes = self.signals().last().and_then(|signal| signal.payload.clone()).unwrap_or_else(Blob::empty);
        decode(&bytes).map_err(|error| TaskError::permanent(format!("the signal's body is of another type: {error}")))
    }
}

impl Context {
    /// Waits for the outside without holding a worker: the execution is suspended, and the handler runs again when the condition
    /// holds; this call gives the answer then, and each time the handler runs again.
    ///
    /// # Errors
    /// One for which [`TaskError::is_parked`] holds; hand it on with `?`.
    pub async fn wait_for(&self, wait: Wait) -> TaskResult<Answer> {
        self.check()?;
        let number = self.calls().count(format!("wait:{}", wait.name));
        if self.parts().execution.suspension_count > 0 {
            let earlier = self.0.resumptions.get_or_try_init(|| self.read_resumptions()).await?;
            if let Some(answer) = nth(earlier, &wait.name, number) {
                return Ok(Answer(answer.clone()));
            }
        }
        match self.suspend(&wait, number).await? {
            SuspendOutcome::Suspended { .. } => {
                self.parts().fate.park();
                Err(TaskError(crate::error::Stop::Parked))
            }
            SuspendOutcome::AlreadySatisfied { .. } => {
                let earlier = self.read_resumptions().await?;
                let answer = nth(&earlier, &wait.name, number).cloned();
                answer
                    .map(Answer)
                    .ok_or_else(|| TaskError::transient(format!("the answer to {:?} cannot be found", wait.name)))
            }
        }
    }

    async fn suspend(&self, wait: &Wait, number: usize) -> TaskResult<SuspendOutcome> {
        let timeout_at = match wait.timeout {
            Some(timeout) => Some(self.now().await?.plus(millis(timeout))),
            None => None,
        };
        let args = SuspendArgs {
            suspension_id: SuspensionId::from_uuid(Uuid::now_v7()),
            waitpoints: wait.bindings(),
            resume_condition: wait.resume_condition(),
            resume_policy: ResumePolicy::default(),
            reason_code: wait.reason,
            requested_by: SuspensionRequester::Worker,
            continuation_metadata_pointer: None,
            timeout_at,
            timeout_behavior: wait.behavior,
            // A repeated call of the same owner is the same suspension; a later owner suspends anew.
            idempotency_key: Some(format!("{}#{number}@{}", wait.name, self.parts().facts.lease_epoch.0)),
        };
        self.guarded(self.backend().suspend(&self.parts().handle, args)).await
    }

    async fn read_resumptions(&self) -> TaskResult<Vec<Resumption>> {
        let mut all: Vec<Resumption> = Vec::new();
        loop {
            let after = all.last().map(|last| last.ordinal);
            let page = self.asked(self.backend().list_resumptions(self.execution_id(), after, PAGE)).await?;
            let is_last = page.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Opens a place where the outside can answer before the handler waits for it: hand the [`Callback`] out, then
    /// [wait](Wait::callback). When the handler runs again, it gets the same one; the same name again, after the wait, opens another.
    ///
    /// # Errors
    /// When the engine has no secret to sign with, or the execution is no longer this worker's.
    pub async fn callback(&self, name: &str, expires_in: Duration) -> TaskResult<Callback> {
        self.check()?;
        let key = format!("callback:{name}#{}", self.calls().count(format!("callback:{name}")));
        let waitpoint_id: WaitpointId = match self.stored(&key).await? {
            Some(stored) => read_id(&stored)?,
            None => {
                let waitpoint_id = self.open_waitpoint(name, expires_in).await?;
                let stored = self.store(&key, format!("\"{waitpoint_id}\"").as_str().into()).await?;
                read_id(&stored)?
            }
        };
        let partition = self.execution_id().partition().into();
        let token = self.asked(self.backend().read_waitpoint_token(&partition, waitpoint_id)).await?;
        let token = token.ok_or_else(|| TaskError::permanent(format!("the callback {name:?} has no token")))?;
        Ok(Callback { execution_id: self.execution_id(), waitpoint_id, name: name.to_owned(), token })
    }

    /// A waitpoint of this name; one that an earlier run opened and did not live to note is found again.
    async fn open_waitpoint(&self, name: &str, expires_in: Duration) -> TaskResult<WaitpointId> {
        let created = self.backend().create_waitpoint(&self.parts().handle, name, expires_in).await;
        if !matches!(created, Err(EngineError::Conflict(ConflictKind::WaitpointAlreadyExists))) {
            return Ok(self.guarded(async { created }).await?.waitpoint_id);
        }
        let args = ListPendingWaitpointsArgs { execution_id: self.execution_id(), after: None, limit: None };
        let open = self.asked(self.backend().list_pending_waitpoints(args)).await?;
        let found = open.entries.into_iter().find(|entry| entry.waitpoint_key == name);
        found
            .map(|entry| entry.waitpoint_id)
            .ok_or_else(|| TaskError::transient(format!("the callback {name:?} is being opened elsewhere")))
    }
}

/// The n-th time that this name was answered.
fn nth<'a>(resumptions: &'a [Resumption], name: &str, number: usize) -> Option<&'a Resumption> {
    resumptions.iter().filter(|one| one.waitpoint_keys.contains(name)).nth(number)
}

fn read_id(stored: &Blob) -> TaskResult<WaitpointId> {
    decode(stored).map_err(|error| TaskError::permanent(format!("a callback was stored as something else: {error}")))
}
