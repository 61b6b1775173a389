//! One operation on its way through the writer.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use ff_core::Result;
use ff_core::backend::layer::BoxFuture;
use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_engine::store::{Op, Reach};
use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::batch::{Batch, Decision};
use super::tx::PostgresTx;

pub(super) type Panic = Box<dyn Any + Send>;

/// A part of a batch.
pub(super) trait Work: Send + Sync {
    /// Whether somebody still waits for the answer.
    fn is_wanted(&self) -> bool;

    fn home(&self) -> Partition;

    fn reach(&self) -> Reach;

    fn newborn(&self) -> Option<ExecutionId>;

    /// Decides, and says whether it refused; may be called again.
    fn run(&mut self, batch: Arc<Batch>) -> BoxFuture<'_, (Decision, bool)>;

    /// Answers, now that it is known what became of the commit.
    fn answer(self: Box<Self>, outcome: Result<()>);
}

/// An operation with somebody who waits for its answer.
pub(super) struct Transaction<O: Op> {
    op: Arc<O>,
    reply: oneshot::Sender<Result<Result<O::Out>, Panic>>,
    ready: std::sync::Mutex<Option<Result<Result<O::Out>, Panic>>>,
}

impl<O: Op> Transaction<O> {
    pub(super) const fn new(op: Arc<O>, reply: oneshot::Sender<Result<Result<O::Out>, Panic>>) -> Self {
        Self { op, reply, ready: std::sync::Mutex::new(None) }
    }

    async fn decide(&self, batch: Arc<Batch>) -> (Result<Result<O::Out>, Panic>, PostgresTx) {
        let mut tx = PostgresTx::new(batch, self.op.reach());
        let run = async {
            tx.prepare(self.op.prefetch().iter()).await?;
            let out = self.op.run(&mut tx).await?;
            tx.prepare_writes().await?;
            Ok(out)
        };
        // Nothing is written before the operation has decided, so one that panics leaves nothing behind.
        let ran = AssertUnwindSafe(run).catch_unwind().await;
        (ran, tx)
    }
}

impl<O: Op> Work for Transaction<O> {
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn home(&self) -> Partition {
        self.op.home()
    }

    fn reach(&self) -> Reach {
        self.op.reach()
    }

    fn newborn(&self) -> Option<ExecutionId> {
        self.op.newborn()
    }

    fn run(&mut self, batch: Arc<Batch>) -> BoxFuture<'_, (Decision, bool)> {
        Box::pin(async move {
            let (mut ran, mut tx) = self.decide(Arc::clone(&batch)).await;
            if tx.may_have_overlooked() {
                batch.look_for_real();
                (ran, tx) = self.decide(batch).await;
            }
            let is_refused = !matches!(ran, Ok(Ok(_)));
            *self.ready.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(ran);
            (tx.into_decision(), is_refused)
        })
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let ready = self.ready.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let answer = match (outcome, ready) {
            (Err(error), _) => Ok(Err(error)),
            (Ok(()), Some(ready)) => ready,
            // Dropping the way back tells the caller.
            (Ok(()), None) => return,
        };
        // A caller that gave up no longer listens.
        let _ = self.reply.send(answer);
    }
}
