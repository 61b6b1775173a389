//! One operation on its way through the writer.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use ff_core::Result;
use ff_core::backend::layer::BoxFuture;
use ff_core::ids::ExecutionId;
use ff_engine::store::{Op, Reach};
use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::batch::{Batch, Decision};
use super::tx::ValkeyTx;

pub(super) type Panic = Box<dyn Any + Send>;

/// A part of a batch.
pub(super) trait Work: Send + Sync {
    /// Whether somebody still waits for the answer.
    fn is_wanted(&self) -> bool;

    fn reach(&self) -> Reach;

    fn newborn(&self) -> Option<ExecutionId>;

    /// Whether it looks for work.
    fn seeks(&self) -> bool {
        self.reach() == Reach::Everywhere && self.newborn().is_none()
    }

    /// Decides, and says whether it refused; may be called again.
    fn run(&mut self, batch: Arc<Batch>) -> BoxFuture<'_, (Decision, bool)>;

    /// Answers, now that it is known what became of the commit.
    fn answer(self: Box<Self>, outcome: Result<()>);
}

type Ready<T> = Result<Result<T>, Panic>;

/// An operation with somebody who waits for its answer.
pub(super) struct Transaction<O: Op> {
    op: Arc<O>,
    reply: oneshot::Sender<Ready<O::Out>>,
    ready: Mutex<Option<Ready<O::Out>>>,
}

impl<O: Op> Transaction<O> {
    pub(super) const fn new(op: Arc<O>, reply: oneshot::Sender<Ready<O::Out>>) -> Self {
        Self { op, reply, ready: Mutex::new(None) }
    }
}

impl<O: Op> Work for Transaction<O> {
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn reach(&self) -> Reach {
        self.op.reach()
    }

    fn newborn(&self) -> Option<ExecutionId> {
        self.op.newborn()
    }

    fn run(&mut self, batch: Arc<Batch>) -> BoxFuture<'_, (Decision, bool)> {
        Box::pin(async move {
            let mut tx = ValkeyTx::new(batch, self.op.reach());
            let run = async {
                tx.prefetch(&self.op.prefetch()).await?;
                let out = self.op.run(&mut tx).await?;
                tx.prepare_writes().await?;
                Ok(out)
            };
            // Nothing is written before the operation has decided, so one that panics leaves nothing behind.
            let ran = AssertUnwindSafe(run).catch_unwind().await;
            let is_refused = !matches!(ran, Ok(Ok(_)));
            *self.ready.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(ran);
            (tx.into_decision(), is_refused)
        })
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let ready = self.ready.into_inner().unwrap_or_else(PoisonError::into_inner);
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
