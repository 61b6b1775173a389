//! The way in for everything that writes.

mod batch;
pub(crate) mod cache;
mod desk;
mod heads;
pub(crate) mod plan;
mod queue;
mod tx;
mod work;

use std::sync::Arc;

use ff_core::Result;
use ff_engine::clock::StoreClock;
use ff_engine::store::Op;
use ff_engine::topics::Topics;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::address::{Layout, Shard};
use crate::connection::Link;
use crate::error::Trouble;
use crate::news::Herald;
use crate::options::Replicas;
use crate::signposts::Signposts;
use cache::Cache;
use desk::Desk;
use plan::News;
use queue::Queue;
use work::{Transaction, Work};

/// What all desks of a process share.
pub(crate) struct Shared {
    pub(crate) link: Link,
    pub(crate) layout: Layout,
    pub(crate) clock: StoreClock,
    pub(crate) memory: Arc<Cache>,
    pub(crate) signposts: Signposts,
    pub(crate) topics: Arc<Topics>,
    pub(crate) herald: Herald,
    pub(crate) process: Uuid,
    pub(crate) replicas: Option<Replicas>,
}

impl Shared {
    /// Tells those in this process who wait for it; the server tells the others.
    fn tell(&self, news: &News) {
        for topic in &news.topics {
            self.topics.wake(topic);
        }
        if let Some(at) = news.due_at {
            self.topics.wake_due(at);
        }
    }
}

/// The desks, two for each shard: those that look for work have to read what the commits before them left, the others hardly ever read and
/// need not wait for that.
pub(crate) struct Writer {
    queues: Vec<[Arc<Queue>; 2]>,
    layout: Layout,
    /// Ended with the writer.
    _tasks: JoinSet<()>,
}

impl Writer {
    pub(crate) fn start(shared: &Arc<Shared>) -> Self {
        let mut tasks = JoinSet::new();
        let mut desk = |shard: Shard, number: u8| {
            let queue = Arc::<Queue>::default();
            tasks.spawn(Desk::new(Arc::clone(shared), shard, number, Arc::clone(&queue)).serve());
            queue
        };
        let queues = shared.layout.shards().map(|shard| [desk(shard, 0), desk(shard, 1)]).collect();
        Self { queues, layout: shared.layout.clone(), _tasks: tasks }
    }

    /// Has an operation run with others; answers after its commit.
    pub(crate) async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        let (reply, answer) = oneshot::channel();
        let shard = self.layout.shard_of(op.home());
        let transaction = Transaction::new(op, reply);
        let desk = usize::from(transaction.seeks());
        self.queues[usize::from(shard.0)][desk].push(Box::new(transaction));
        match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(Trouble::Closed.into()),
        }
    }
}
