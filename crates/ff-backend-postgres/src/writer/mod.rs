//! The way in for everything that writes.

mod batch;
pub(crate) mod cache;
mod changes;
mod desk;
mod foresight;
mod hand;
mod heads;
pub(crate) mod locks;
mod mirror;
pub(crate) mod mirrors;
pub(crate) mod plan;
mod queue;
mod settler;
mod tx;
mod work;

use std::sync::Arc;

use ff_core::Result;
use ff_engine::clock::StoreClock;
use ff_engine::store::Op;
use ff_engine::topics::Topics;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::address::{Address, Stored};
use crate::connection::Pool;
use crate::error::Trouble;
use crate::news::Herald;
use crate::session::Session;
use crate::standing::Standing;
use crate::young::Young;
use cache::Cache;
use desk::Desk;
use hand::Hands;
use mirrors::{Mirrors, Moved};
use plan::News;
use queue::Queue;
use work::Transaction;

/// What a process remembers of the store.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) rows: Cache,
    pub(crate) mirrors: Mirrors,
}

/// What all desks of a process share.
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) schema: Arc<str>,
    pub(crate) clock: StoreClock,
    pub(crate) memory: Arc<Memory>,
    pub(crate) topics: Arc<Topics>,
    pub(crate) herald: Herald,
    pub(crate) young: Arc<Young>,
    pub(crate) standing: Standing,
}

impl Shared {
    /// A connection.
    pub(crate) async fn session(&self) -> Result<Session> {
        Ok(Session::new(self.pool.get().await?, Arc::clone(&self.schema)))
    }

    /// A version that no row has had.
    fn version(&self) -> i64 {
        crate::tables::record::new_version()
    }

    /// Remembers what a commit left and tells those who wait for it.
    fn committed(&self, after: Vec<(Address, Option<Arc<Stored>>)>, moved: &[Moved], news: &News) {
        for (address, stored) in after {
            self.remember(address, stored);
        }
        self.memory.mirrors.follow(moved);
        self.tell(news);
    }

    fn remember(&self, address: Address, stored: Option<Arc<Stored>>) {
        // Hardly anybody asks for what has ended; who does has it remembered.
        if stored.as_deref().is_some_and(Stored::has_ended) {
            self.memory.rows.forget(&address);
        } else {
            self.memory.rows.put(address, stored);
        }
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
    queue: Arc<Queue>,
    /// Ended with the writer.
    _tasks: JoinSet<()>,
}

impl Writer {
    /// Opens so many desks.
    pub(crate) fn start(shared: &Arc<Shared>, desks: usize) -> Self {
        let (queue, hands) = (Arc::<Queue>::default(), Hands::new(Arc::clone(&shared.topics)));
        let mut tasks = JoinSet::new();
        for _ in 0..desks.max(1) {
            tasks.spawn(Desk::new(Arc::clone(shared), hands.clone()).serve(Arc::clone(&queue)));
        }
        tasks.spawn(settler::serve(Arc::clone(shared)));
        tasks.spawn(Standing::keep(Arc::clone(shared)));
        Self { queue, _tasks: tasks }
    }

    /// Has an operation run with others; answers after its commit.
    pub(crate) async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        let (reply, answer) = oneshot::channel();
        self.queue.push(Box::new(Transaction::new(op, reply)));
        match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(Trouble::Closed.into()),
        }
    }
}
