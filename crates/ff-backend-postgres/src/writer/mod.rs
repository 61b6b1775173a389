//! The way in for everything that writes.

mod batch;
pub(crate) mod cache;
mod changes;
mod desk;
pub(crate) mod plan;
mod tx;
mod work;

use std::sync::Arc;

use ff_core::Result;
use ff_engine::store::{Op, Reach};
use ff_engine::topics::Topics;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::address::{Address, Stored};
use crate::clock::StoreClock;
use crate::connection::Pool;
use crate::error::Trouble;
use crate::news::Herald;
use crate::session::Session;
use cache::Cache;
use desk::Desk;
use plan::News;
use work::{Transaction, Work};

/// What all desks of a process share.
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) schema: Arc<str>,
    pub(crate) clock: StoreClock,
    pub(crate) cache: Arc<Cache>,
    pub(crate) topics: Arc<Topics>,
    pub(crate) herald: Herald,
}

impl Shared {
    /// A connection.
    pub(crate) async fn session(&self) -> Result<Session> {
        Ok(Session::new(self.pool.get().await?, Arc::clone(&self.schema)))
    }

    /// A version that no row has had.
    fn version(&self) -> i64 {
        fastrand::i64(1..)
    }

    /// Remembers what a commit left and tells those who wait for it.
    fn committed(&self, after: Vec<(Address, Option<Arc<Stored>>)>, news: &News) {
        for (address, stored) in after {
            match stored {
                Some(stored) => self.cache.put(address, stored),
                None => self.cache.forget(&address),
            }
        }
        self.tell(news);
    }

    /// Tells those who wait for it.
    fn tell(&self, news: &News) {
        for topic in &news.topics {
            self.topics.wake(topic);
        }
        if let Some(at) = news.due_at {
            self.topics.wake_due(at);
        }
        self.herald.tell(news);
    }
}

/// The desks.
pub(crate) struct Writer {
    /// By partition, so that operations on the same records come together.
    desks: Vec<mpsc::UnboundedSender<Box<dyn Work>>>,
    /// For those whose home is everywhere: they take work out of queues, or put it in.
    seekers: mpsc::UnboundedSender<Box<dyn Work>>,
    /// Ended with the writer.
    _tasks: JoinSet<()>,
}

impl Writer {
    /// Opens so many desks, and one for those who look for work.
    pub(crate) fn start(shared: &Arc<Shared>, desks: usize) -> Self {
        let mut tasks = JoinSet::new();
        let mut open = || {
            let (jobs, queue) = mpsc::unbounded_channel();
            tasks.spawn(Desk::new(Arc::clone(shared)).serve(queue));
            jobs
        };
        let seekers = open();
        let desks = (0..desks.max(1)).map(|_| open()).collect();
        Self { desks, seekers, _tasks: tasks }
    }

    /// Has an operation run with others; answers after its commit.
    pub(crate) async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        let desk = self.desk(&*op);
        let (reply, answer) = oneshot::channel();
        desk.send(Box::new(Transaction::new(op, reply))).map_err(|_| Trouble::Closed)?;
        match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(Trouble::Closed.into()),
        }
    }

    fn desk(&self, op: &impl Op) -> &mpsc::UnboundedSender<Box<dyn Work>> {
        let home = op.home();
        match op.reach() {
            Reach::Everywhere => &self.seekers,
            Reach::Home => &self.desks[plan::place(home).unsigned_abs() as usize % self.desks.len()],
        }
    }
}
