//! The attempt gives its lease back and goes on later.

use async_trait::async_trait;
use ff_core::backend::subscriptions::ReleaseReason;
use ff_core::partition::Partition;
use ff_core::rules::replay::Call;
use ff_core::{Result, TimestampMs};

use super::{Actor, Admitted};
use crate::key::Key;
use crate::lifecycle::dependencies::{Children, children};
use crate::lifecycle::{Ending, Subject, finish, park_attempt, released};
use crate::store::{Op, Tx};

/// What the attempt waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    /// A time.
    Until(TimestampMs),
    /// Its children.
    Children,
}

pub(super) struct Park {
    pub(super) actor: Actor,
    pub(super) pause: Pause,
}

#[async_trait]
impl Op for Park {
    /// Whether quotas are owed the end of this ownership.
    type Out = Result<bool>;

    fn home(&self) -> Partition {
        self.actor.execution_id.partition()
    }

    fn prefetch(&self) -> Vec<Key> {
        Subject::keys(self.actor.execution_id)
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<Result<bool>> {
        let call = match self.pause {
            Pause::Until(until) => Call::Delay { until },
            Pause::Children => Call::WaitChildren,
        };
        let subject = match self.actor.enter(tx, call).await? {
            Admitted::Owner(subject) => *subject,
            Admitted::Repeated(..) => return Ok(Ok(false)),
            Admitted::Refused(error) => return Ok(Err(error)),
        };
        let owes = subject.execution.owes_quotas();
        match self.pause {
            Pause::Until(until) => park_until(tx, subject, until).await?,
            Pause::Children => park_for_children(tx, subject).await?,
        }
        Ok(Ok(owes))
    }
}

async fn park_until(tx: &mut dyn Tx, mut subject: Subject, until: TimestampMs) -> Result<()> {
    park_attempt(tx, &subject.execution).await?;
    let release = subject.execution.worker_delay(until, tx.now());
    released(tx, &subject, release, ReleaseReason::WorkerDelay);
    subject.save(tx);
    Ok(())
}

async fn park_for_children(tx: &mut dyn Tx, mut subject: Subject) -> Result<()> {
    let open = match children(tx, &mut subject.execution).await? {
        Children::Settled => false,
        Children::Open => true,
        Children::Impossible => {
            finish(tx, subject, Ending::skipped()).await?;
            return Ok(());
        }
    };
    park_attempt(tx, &subject.execution).await?;
    let release = subject.execution.wait_children(open, tx.now());
    released(tx, &subject, release, ReleaseReason::WaitingChildren);
    subject.save(tx);
    Ok(())
}
