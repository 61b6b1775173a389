//! One operation on its way through the writer.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ff_core::Result;
use ff_engine::store::Op;
use tokio::sync::oneshot;

use super::desk::Desk;
use super::tx::SqliteTx;

type Panic = Box<dyn Any + Send>;

/// A part of a group.
pub(crate) trait Work: Send {
    /// Whether somebody still waits for the answer.
    fn is_wanted(&self) -> bool;

    /// Runs it and applies its writes; an error means that the group's transaction is spoiled. May be called again.
    fn run(&mut self, desk: &mut Desk) -> Result<()>;

    /// Answers, now that it is known what became of the group.
    fn answer(self: Box<Self>, outcome: Result<()>);
}

/// An operation with somebody who waits for its answer.
pub(super) struct Transaction<O: Op> {
    op: Arc<O>,
    reply: oneshot::Sender<Result<Result<O::Out>, Panic>>,
    ready: Option<Result<Result<O::Out>, Panic>>,
}

impl<O: Op> Transaction<O> {
    pub(super) const fn new(op: Arc<O>, reply: oneshot::Sender<Result<Result<O::Out>, Panic>>) -> Self {
        Self { op, reply, ready: None }
    }
}

impl<O: Op> Work for Transaction<O> {
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn run(&mut self, desk: &mut Desk) -> Result<()> {
        let mut tx = SqliteTx::new(desk, &*self.op);
        // Writes are applied after the operation has decided, so one that panics leaves nothing behind.
        let ran = catch_unwind(AssertUnwindSafe(|| finish(self.op.run(&mut tx))));
        match ran {
            Ok(Ok(out)) => {
                tx.apply()?;
                self.ready = Some(Ok(Ok(out)));
            }
            Ok(Err(refusal)) => self.ready = Some(Ok(Err(refusal))),
            Err(panic) => self.ready = Some(Err(panic)),
        }
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let answer = match (outcome, self.ready) {
            (Err(error), _) => Ok(Err(error)),
            (Ok(()), Some(ready)) => ready,
            // Dropping the way back tells the caller.
            (Ok(()), None) => return,
        };
        // A caller that gave up no longer listens.
        let _ = self.reply.send(answer);
    }
}

/// Runs a future that waits for nothing but this store, whose transactions are never pending for long.
fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut context) {
            return out;
        }
        std::thread::yield_now();
    }
}
