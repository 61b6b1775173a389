//! The one thread that writes: it runs what waits, commits it together, and answers after the commit.

mod checkpointer;
mod desk;
mod flusher;
mod group;
#[cfg(test)]
mod tests;
mod tx;
mod work;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use ff_core::Result;
use ff_engine::store::Op;
use ff_engine::topics::Topics;
use tokio::sync::oneshot;

pub(crate) use desk::{Desk, StoreClock};
pub(crate) use flusher::Durability;
pub(crate) use work::Work;

use crate::error::Trouble;
use crate::watch::{Watch, Watcher};
use group::{Next, Queue};
use work::Transaction;

type Alone = Box<dyn FnOnce(&mut Desk) + Send>;

/// Something for the writer to do.
pub(crate) enum Job {
    /// A part of the next group.
    Work(Box<dyn Work>),
    /// On its own, between two groups.
    Alone(Alone),
    /// Look around: somebody began to listen for news, or somebody wrote.
    Look,
}

/// The way to the thread. Dropping it ends the thread after what it was given is done.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<Sender<Job>>,
    /// Tells of what others write.
    watcher: Option<Watcher>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. Others may write to `log`, if there is one.
    pub(crate) fn start(desk: Desk, topics: Arc<Topics>, log: Option<&Path>, poll_interval: Duration) -> Result<Self> {
        let (jobs, queue) = crossbeam_channel::unbounded();
        let watcher = log.and_then(|log| Watcher::start(log, poll_interval, teller(jobs.clone(), Arc::clone(&topics))));
        let mut watch = log.map(|log| Watch::new(log, watcher.is_some(), poll_interval));
        let thread = std::thread::Builder::new()
            .name("ff-sqlite-writer".into())
            .spawn(move || serve(desk, &queue, &topics, watch.as_mut()))
            .map_err(|error| Trouble::Other(format!("the writer's thread does not start: {error}")))?;
        Ok(Self { jobs: Some(jobs), watcher, thread: Some(thread) })
    }

    /// Has an operation run in the next group; answers after its commit.
    pub(crate) async fn transact<O: Op>(&self, op: Arc<O>) -> Result<O::Out> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Work(Box::new(Transaction::new(op, reply))))?;
        match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(Trouble::Closed.into()),
        }
    }

    /// Has something done between two groups.
    pub(crate) async fn alone<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Desk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job = move |desk: &mut Desk| {
            // A caller that gave up no longer listens.
            let _ = reply.send(job(desk));
        };
        self.send(Job::Alone(Box::new(job)))?;
        answer.await.map_err(|_| Trouble::Closed)?
    }

    /// Says that somebody listens now.
    pub(crate) fn listen(&self) {
        // Without a writer there is no news.
        let _ = self.send(Job::Look);
    }

    fn send(&self, job: Job) -> Result<()> {
        let jobs = self.jobs.as_ref().ok_or(Trouble::Closed)?;
        Ok(jobs.send(job).map_err(|_| Trouble::Closed)?)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs.take();
        self.watcher.take();
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has told its callers already.
            let _ = thread.join();
        }
    }
}

/// Has the writer look, if anybody wants to know.
fn teller(jobs: Sender<Job>, topics: Arc<Topics>) -> impl Fn() + Send + 'static {
    move || {
        if topics.has_listeners() {
            // Without a writer there is no news.
            let _ = jobs.send(Job::Look);
        }
    }
}

fn serve(mut desk: Desk, jobs: &Receiver<Job>, topics: &Topics, mut watch: Option<&mut Watch>) {
    let mut queue = Queue::new(jobs);
    loop {
        let patience = watch.as_ref().filter(|_| topics.has_listeners()).map(|watch| watch.every);
        match queue.wait(patience) {
            Next::Group(first) => group::run(&mut desk, first, &mut queue),
            Next::Alone(job) => job(&mut desk),
            Next::Look => desk.look_around(),
            Next::Nothing if watch.as_mut().is_some_and(|watch| watch.may_have_changed()) => desk.look_around(),
            Next::Nothing => continue,
            Next::End => return desk.close(),
        }
        desk.tidy();
    }
}
