//! The timeout of a suspension strikes.

use ff_core::backend::signals::SignalEffect;
use ff_core::backend::subscriptions::ReleaseReason;
use ff_core::backend::suspension::{ResumeTrigger, TIMEOUT_SIGNAL_NAME, TIMEOUT_SOURCE_TYPE};
use ff_core::ids::{ExecutionId, SignalId};
use ff_core::partition::Partition;
use ff_core::policy::TimeoutBehavior;
use ff_core::rules::conditions::MatchedSignal;
use ff_core::state::{CloseReason, StreamCloseReason};
use ff_core::{Result, TimestampMs};

use crate::key::Key;
use crate::lifecycle::{self, Ending, Subject};
use crate::records::{Signal, SignalTally, Suspension, Waitpoint};
use crate::store::{Op, Tx};

pub(super) struct Expire {
    pub(super) execution: ExecutionId,
    /// The caller's time; the store's is taken when it is earlier.
    pub(super) now: TimestampMs,
    /// The id of the signal that a resume by timeout records.
    pub(super) signal: SignalId,
}

#[async_trait::async_trait]
impl Op for Expire {
    type Out = ();

    fn home(&self) -> Partition {
        self.execution.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.execution)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        let Some(subject) = Subject::find(tx, self.execution).await? else { return Ok(()) };
        let Some(suspension) = self.due(tx, &subject).await? else { return Ok(()) };
        match suspension.timeout_behavior {
            TimeoutBehavior::AutoResumeWithTimeoutSignal => self.resume(tx, subject, suspension).await,
            TimeoutBehavior::Escalate => {
                escalate(tx, subject, suspension);
                Ok(())
            }
            TimeoutBehavior::Fail => end(tx, subject, failed()).await,
            TimeoutBehavior::Cancel => end(tx, subject, cancelled()).await,
            TimeoutBehavior::Expire => end(tx, subject, expired()).await,
        }
    }
}

impl Expire {
    /// The open suspension, if its time is over.
    async fn due(&self, tx: &mut dyn Tx, subject: &Subject) -> Result<Option<Suspension>> {
        let execution = &subject.execution;
        let due = execution.suspension_timeout_at.is_some_and(|at| at.is_due(self.now.min(tx.now())));
        let Some(ordinal) = execution.suspension.filter(|_| due && execution.is_suspended()) else { return Ok(None) };
        tx.get::<Suspension>(Key::suspension(execution.id, ordinal)).await
    }

    async fn resume(&self, tx: &mut dyn Tx, mut subject: Subject, mut suspension: Suspension) -> Result<()> {
        suspension.timeout_signal = self.record(tx, &suspension).await?;
        tx.put(suspension);
        let resume = lifecycle::Resume {
            reason: CloseReason::TimedOutAutoResume,
            trigger: ResumeTrigger::AutoResume,
            delay_ms: 0,
        };
        lifecycle::resume(tx, &mut subject, resume).await
    }

    /// Records the timeout's own signal at the primary waitpoint.
    async fn record(&self, tx: &mut dyn Tx, suspension: &Suspension) -> Result<Option<MatchedSignal>> {
        let (now, home) = (tx.now(), self.home());
        let Some(primary) = suspension.waitpoints.first() else { return Ok(None) };
        let Some(mut waitpoint) = tx.get::<Waitpoint>(Key::waitpoint(home, *primary)).await? else { return Ok(None) };
        tx.put(Signal {
            home,
            waitpoint: waitpoint.id,
            id: self.signal,
            execution: self.execution,
            ordinal: waitpoint.signal_count,
            name: TIMEOUT_SIGNAL_NAME.to_owned(),
            category: String::new(),
            source_type: TIMEOUT_SOURCE_TYPE.to_owned(),
            source_identity: String::new(),
            correlation_id: None,
            payload: None,
            payload_encoding: None,
            accepted_at: now,
            effect: SignalEffect::ResumeConditionSatisfied,
        });
        let matched = MatchedSignal { waitpoint_id: waitpoint.id, signal_id: self.signal };
        waitpoint.signal_count += 1;
        tx.put(waitpoint);
        let tally = tx.get::<SignalTally>(Key::signal_tally(self.execution)).await?;
        let mut tally = tally.unwrap_or_else(|| SignalTally::none(self.execution));
        tally.recorded += 1;
        tally.last_signal_at = Some(now);
        tx.put(tally);
        Ok(Some(matched))
    }
}

fn escalate(tx: &mut dyn Tx, mut subject: Subject, mut suspension: Suspension) {
    suspension.escalate();
    tx.put(suspension);
    subject.execution.escalate_suspension(tx.now());
    subject.save(tx);
}

async fn end(tx: &mut dyn Tx, subject: Subject, ending: Ending) -> Result<()> {
    lifecycle::finish(tx, subject, Ending { stream: StreamCloseReason::SuspensionTimeout, ..ending }).await.map(drop)
}

fn failed() -> Ending {
    Ending { waitpoints: CloseReason::TimedOutFail, ..Ending::failed("suspension_timeout:fail", "timeout") }
}

fn cancelled() -> Ending {
    let ending = Ending::cancelled("suspension_timeout:cancel", TIMEOUT_SOURCE_TYPE);
    Ending { waitpoints: CloseReason::TimedOutCancel, ..ending }
}

fn expired() -> Ending {
    // A suspended execution has no lease, so nothing is released.
    let ending = Ending::expired("suspension_timeout:expire", ReleaseReason::Suspend);
    Ending { waitpoints: CloseReason::TimedOutExpire, ..ending }
}
