//! Time takes an execution from its owner, or ends it.

use async_trait::async_trait;
use ff_core::backend::leases::ExpirePhase;
use ff_core::backend::subscriptions::ReleaseReason;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_core::rules::retry::{FailureClass, RetryDecision, decide_timeout};
use ff_core::state::StreamCloseReason;
use ff_core::{Result, TimestampMs};

use crate::key::Key;
use crate::lifecycle::{Ending, Retry, Subject, finish, mark_expired, policy, retry_later};
use crate::records::Execution;
use crate::store::{Op, Tx};

/// Marks a lease as expired if its time is up; anything else is left alone.
pub(crate) struct MarkExpired {
    pub(crate) execution_id: ExecutionId,
}

#[async_trait]
impl Op for MarkExpired {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(mut subject) = Subject::find(tx, self.execution_id).await? else { return Ok(()) };
        if subject.execution.is_overdue(tx.now()) {
            mark_expired(tx, &mut subject).await?;
        }
        Ok(())
    }
}

/// Acts on the attempt timeout or the deadline of an execution, if it is due by the caller's time and by the store's.
pub(crate) struct Expire {
    pub(crate) execution_id: ExecutionId,
    pub(crate) phase: ExpirePhase,
    pub(crate) now: TimestampMs,
    /// For jitter.
    pub(crate) uniform: f64,
}

#[async_trait]
impl Op for Expire {
    /// Whether quotas are owed the end of an ownership.
    type Out = bool;

    fn home(&self) -> Partition {
        self.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        let Some(subject) = Subject::find(tx, self.execution_id).await? else { return Ok(false) };
        let now = self.now.min(tx.now());
        if !armed(&subject.execution, self.phase).is_some_and(|at| at.is_due(now)) {
            return Ok(false);
        }
        let owes = subject.execution.is_active() && subject.execution.owes_quotas();
        match self.phase {
            ExpirePhase::ExecutionDeadline => {
                let ending = Ending::expired(self.phase.as_str(), ReleaseReason::ExpiredExecutionDeadline);
                finish(tx, subject, ending).await?;
            }
            ExpirePhase::AttemptTimeout => self.time_out(tx, subject).await?,
        }
        Ok(owes)
    }
}

impl Expire {
    async fn time_out(&self, tx: &mut dyn Tx, subject: Subject) -> Result<()> {
        let retry = policy(tx, self.execution_id).await?.and_then(|policy| policy.retry_policy);
        let release = ReleaseReason::ExpiredAttemptTimeout;
        match decide_timeout(retry.as_ref(), subject.execution.retry_count, self.uniform) {
            RetryDecision::Retry { delay_ms } => {
                let retry = Retry {
                    at: tx.now().plus(delay_ms),
                    reason: self.phase.as_str(),
                    category: FailureClass::Timeout.as_str(),
                    stream: StreamCloseReason::Expired,
                    release,
                    taken: true,
                };
                retry_later(tx, subject, retry).await
            }
            RetryDecision::Terminal => {
                finish(tx, subject, Ending::expired(self.phase.as_str(), release)).await?;
                Ok(())
            }
        }
    }
}

/// When the timer of a phase goes off; `None` where it does not apply.
fn armed(execution: &Execution, phase: ExpirePhase) -> Option<TimestampMs> {
    match phase {
        ExpirePhase::ExecutionDeadline if !execution.is_terminal() => execution.deadline_at,
        ExpirePhase::AttemptTimeout if execution.is_active() => execution.attempt_timeout_at,
        _ => None,
    }
}
