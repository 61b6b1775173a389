//! The attempt fails: a retry follows, or the end.

use async_trait::async_trait;
use ff_core::backend::attempts::FailExecutionResult;
use ff_core::backend::subscriptions::ReleaseReason;
use ff_core::ids::AttemptIndex;
use ff_core::partition::Partition;
use ff_core::policy::RetryPolicy;
use ff_core::rules::replay::{Call, Replayed};
use ff_core::rules::retry::{Failure, FailureClass, RetryDecision, decide};
use ff_core::state::StreamCloseReason;
use ff_core::{Blob, Result};

use super::{Actor, Admitted, check_size};
use crate::key::Key;
use crate::lifecycle::{Ending, Retry, Subject, finish, policy, retry_later};
use crate::records::{Attempt, Execution};
use crate::store::{Op, Tx};

pub(super) struct Fail {
    pub(super) actor: Actor,
    pub(super) reason: String,
    pub(super) class: FailureClass,
    pub(super) category: String,
    pub(super) detail: Option<Blob>,
    pub(super) detail_bytes_max: usize,
    /// In place of the stored one.
    pub(super) policy: Option<RetryPolicy>,
    /// For jitter.
    pub(super) uniform: f64,
}

/// What became of a failure.
pub(super) struct Failed {
    pub(super) outcome: FailExecutionResult,
    /// Whether quotas are owed the end of this ownership.
    pub(super) owes: bool,
}

impl Failed {
    fn again(replayed: Replayed, execution: &Execution) -> Self {
        let outcome = match replayed {
            Replayed::RetryScheduled { delay_until } => FailExecutionResult::RetryScheduled {
                delay_until,
                next_attempt_index: AttemptIndex(execution.attempt_count),
            },
            _ => FailExecutionResult::TerminalFailed,
        };
        Self { outcome, owes: false }
    }
}

#[async_trait]
impl Op for Fail {
    type Out = Result<Failed>;

    fn home(&self) -> Partition {
        self.actor.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.actor.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<Failed>> {
        let subject = match self.actor.enter(tx, Call::Fail).await? {
            Admitted::Owner(subject) => *subject,
            Admitted::Repeated(replayed, execution) => return Ok(Ok(Failed::again(replayed, &execution))),
            Admitted::Refused(error) => return Ok(Err(error)),
        };
        check_size("failure detail", self.detail.as_ref(), self.detail_bytes_max)?;
        self.keep_detail(tx, &subject.execution).await?;
        let owes = subject.execution.owes_quotas();
        let outcome = match self.decide(tx, &subject.execution).await? {
            RetryDecision::Retry { delay_ms } => self.retry(tx, subject, delay_ms).await?,
            RetryDecision::Terminal => {
                let ending = Ending::failed(&self.reason, &self.category).taken(!self.actor.is_owner());
                finish(tx, subject, ending).await?;
                FailExecutionResult::TerminalFailed
            }
        };
        Ok(Ok(Failed { outcome, owes }))
    }
}

impl Fail {
    async fn decide(&self, tx: &mut dyn Tx, execution: &Execution) -> Result<RetryDecision> {
        let stored = match &self.policy {
            Some(_) => None,
            None => policy(tx, execution.id).await?.and_then(|policy| policy.retry_policy),
        };
        let failure = Failure {
            class: self.class,
            category: &self.category,
            retry_count: execution.retry_count,
            uniform: self.uniform,
        };
        Ok(decide(failure, self.policy.as_ref().or(stored.as_ref())))
    }

    async fn retry(&self, tx: &mut dyn Tx, subject: Subject, delay_ms: u64) -> Result<FailExecutionResult> {
        let delay_until = tx.now().plus(delay_ms);
        let next_attempt_index = AttemptIndex(subject.execution.attempt_count);
        let retry = Retry {
            at: delay_until,
            reason: &self.reason,
            category: &self.category,
            stream: StreamCloseReason::AttemptFailure,
            release: ReleaseReason::FailedRetryScheduled,
            taken: !self.actor.is_owner(),
        };
        retry_later(tx, subject, retry).await?;
        Ok(FailExecutionResult::RetryScheduled { delay_until, next_attempt_index })
    }

    async fn keep_detail(&self, tx: &mut dyn Tx, execution: &Execution) -> Result<()> {
        let Some(detail) = &self.detail else { return Ok(()) };
        let key = Key::attempt(execution.id, execution.attempt_index);
        if let Some(mut attempt) = tx.get::<Attempt>(key).await? {
            attempt.detail = Some(detail.clone());
            tx.put(attempt);
        }
        Ok(())
    }
}
