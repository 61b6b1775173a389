//! Threads that read, each on a connection of its own, beside the writer.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use ff_core::Result;
use tokio::sync::oneshot;

use crate::connection::{Statements, open_reader};
use crate::error::Trouble;
use crate::young::{View, Watcher};

/// How many read at once.
const READERS: usize = 2;

type Job = Box<dyn FnOnce(&mut Watcher) + Send>;

/// The way to the threads. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Readers {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts the threads.
    pub(crate) fn start(path: &Path, busy_timeout: Duration, statements: &Statements) -> Result<Self> {
        let (jobs, queue) = crossbeam_channel::unbounded::<Job>();
        let mut readers = Self { jobs: Some(jobs), threads: Vec::new() };
        for _ in 0..READERS {
            let mut db = open_reader(path, busy_timeout)?;
            statements.count(&mut db)?;
            let mut watcher = Watcher::new(db);
            let queue = queue.clone();
            let thread = std::thread::Builder::new()
                .name("ff-sqlite-reader".into())
                .spawn(move || serve(&mut watcher, &queue))
                .map_err(|error| Trouble::Other(format!("a reader's thread does not start: {error}")))?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Reads at one moment.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(View<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job = move |watcher: &mut Watcher| {
            // A caller that gave up no longer listens.
            let _ = reply.send(watcher.at_one_moment(job));
        };
        let jobs = self.jobs.as_ref().ok_or(Trouble::Closed)?;
        jobs.send(Box::new(job)).map_err(|_| Trouble::Closed)?;
        answer.await.map_err(|_| Trouble::Closed)?
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.jobs.take();
        for thread in self.threads.drain(..) {
            // One that panicked has told its caller already.
            let _ = thread.join();
        }
    }
}

fn serve(watcher: &mut Watcher, queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        job(watcher);
    }
}
