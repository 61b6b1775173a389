//! Submissions that come in through a transaction of the caller's own.
//!
//! Such a transaction cannot decide: it may stay open for long, and nobody else may wait for it. So a submission is checked before, the
//! transaction only notes it, and once that is committed anybody takes it in: creates what it asks for and removes the note, in one commit. It is
//! therefore taken in once, whoever tries and whatever has become of the execution since.

use std::sync::Arc;

use ff_core::Result;
use ff_core::backend::flows::CreateFlowArgs;
use ff_core::backend::ingress::CreateExecutionArgs;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;

use super::shortcut::CreateAtOnce;
use super::{Submission, check, identify, known, known_keys};
use crate::engine::Engine;
use crate::key::Key;
use crate::ops::flows::check_kind;
use crate::ops::flows::membership::CreateFlow;
use crate::records::{Intake, IntakeWork, Stored};
use crate::store::{Op, Reach, Store, Tx};
use crate::timers::witness::{changes, witness};

impl<S: Store> Engine<S> {
    /// Checks a submission, and gives the id of its execution and what is to be stored for it to be taken in, by a transaction that is not the
    /// engine's. Nothing is written.
    ///
    /// Whatever changes after this call, such as a lane that is closed, does not refuse it any more. Whether its id or its idempotency key is known
    /// is decided when it is taken in, as between two calls of `create_execution` at that moment: the earlier execution stands, and no other one comes
    /// to be. What is attached to its namespace, lane and tags, and its time of creation, are those of that moment, too.
    ///
    /// # Errors
    /// Those of `create_execution`.
    pub async fn admit_execution(&self, args: CreateExecutionArgs) -> Result<(ExecutionId, Intake)> {
        let id = identify(self, &args).await?;
        let args = check(self, id, args.into()).await?.args;
        Ok((id, self.intake(id.partition(), IntakeWork::Execution { id, args }).await?))
    }

    /// The same for a flow. One that is there when it is taken in stays as it is.
    ///
    /// # Errors
    /// Those of `create_flow`.
    pub async fn admit_flow(&self, args: CreateFlowArgs) -> Result<Intake> {
        check_kind(&args.flow_kind)?;
        self.intake(self.flow_home(args.flow_id), IntakeWork::Flow { args }).await
    }

    async fn intake(&self, home: Partition, work: IntakeWork) -> Result<Intake> {
        let submitted_at = self.store.now().await?;
        Ok(Intake { home, id: self.uuid_at(submitted_at), work, submitted_at })
    }
}

/// Creates what a submission asks for; says whether a commit of ours did, and not somebody else's.
pub(crate) async fn take_in<S: Store>(engine: &Engine<S>, intake: Intake) -> Result<bool> {
    let key = intake.key();
    match intake.work {
        IntakeWork::Execution { id, args } => take_in_execution(engine, key, id, args).await,
        IntakeWork::Flow { args } => {
            let create = CreateFlow { home: intake.home, args };
            changes(engine, key.clone(), TakeInFlow { intake: key, create }).await
        }
    }
}

async fn take_in_execution<S: Store>(
    engine: &Engine<S>,
    intake: Key,
    id: ExecutionId,
    args: Arc<CreateExecutionArgs>,
) -> Result<bool> {
    if engine.store.spans_partitions()
        && let Some(create) = CreateAtOnce::of(engine, id, &args)
    {
        let op = TakeInAtOnce { intake: intake.clone(), create };
        let (has_changed, is_done) = witness(engine, intake.clone(), op).await?;
        if is_done {
            return Ok(has_changed);
        }
    }
    let policy = args.policy.as_ref().map(|document| document.decode()).transpose()?;
    let mut submission = Submission::new(id, policy, args)?;
    submission.attach(engine).await?;
    submission.register(engine, submission.class()).await?;
    changes(engine, intake.clone(), TakeIn { intake, submission }).await
}

async fn is_there(tx: &mut dyn Tx, intake: &Key) -> Result<bool> {
    Ok(tx.get::<Intake>(intake.clone()).await?.is_some())
}

struct TakeIn {
    intake: Key,
    submission: Submission,
}

#[async_trait::async_trait]
impl Op for TakeIn {
    type Out = ();

    fn home(&self) -> Partition {
        self.intake.partition
    }

    fn prefetch(&self) -> Vec<Key> {
        known_keys(self.submission.id, &self.submission.args).into_iter().chain([self.intake.clone()]).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        if !is_there(tx, &self.intake).await? {
            return Ok(());
        }
        let found = tx.load(&known_keys(self.submission.id, &self.submission.args)).await?;
        if known(found, tx.now()).is_none() {
            self.submission.insert(tx);
        }
        tx.delete(self.intake.clone());
        Ok(())
    }
}

/// The same in one transaction, where nothing outside of the partition has a say.
struct TakeInAtOnce {
    intake: Key,
    create: CreateAtOnce,
}

#[async_trait::async_trait]
impl Op for TakeInAtOnce {
    /// Whether it is taken in, by whomever; otherwise the general way is to be taken.
    type Out = bool;

    fn home(&self) -> Partition {
        self.intake.partition
    }

    fn reach(&self) -> Reach {
        Reach::Everywhere
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<bool> {
        if !is_there(tx, &self.intake).await? {
            return Ok(true);
        }
        if self.create.run(tx).await?.is_none() {
            return Ok(false);
        }
        tx.delete(self.intake.clone());
        Ok(true)
    }
}

struct TakeInFlow {
    intake: Key,
    create: CreateFlow,
}

#[async_trait::async_trait]
impl Op for TakeInFlow {
    type Out = ();

    fn home(&self) -> Partition {
        self.intake.partition
    }

    fn prefetch(&self) -> Vec<Key> {
        self.create.prefetch().into_iter().chain([self.intake.clone()]).collect()
    }

    async fn run(&self, tx: &mut dyn Tx) -> Result<()> {
        if is_there(tx, &self.intake).await? {
            self.create.run(tx).await?;
            tx.delete(self.intake.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
