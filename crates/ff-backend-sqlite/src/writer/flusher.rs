//! Making groups durable beside the writer: while one group is on its way to the disk, the next one runs.
//!
//! SQLite commits a group into its write-ahead log; this thread flushes the log and answers only then. Groups that were committed
//! meanwhile share the next flush. While nobody waits for the writer, it flushes the log itself, which spares two changes of threads.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use ff_core::{Result, TimestampMs};
use ff_engine::hash::HashSet;
use ff_engine::index::Topic;
use ff_engine::topics::Topics;
use tokio::sync::watch;

use super::checkpointer::Growth;
use super::work::Work;
use crate::error::Trouble;

/// A committed group that waits for the disk.
pub(super) struct Committed {
    pub(super) number: u64,
    pub(super) has_written: bool,
    pub(super) group: Vec<Box<dyn Work>>,
    pub(super) news: HashSet<Topic>,
    pub(super) due_at: Option<TimestampMs>,
}

/// How far the log is on the disk, and whether the disk has failed.
#[derive(Clone, Debug)]
pub(crate) struct Durability {
    flushed: watch::Sender<u64>,
    has_failed: Arc<AtomicBool>,
}

impl Durability {
    pub(crate) fn new() -> Self {
        Self { flushed: watch::Sender::new(0), has_failed: Arc::default() }
    }

    /// Refuses to go on after a flush that failed: what is on the disk is not known any more.
    pub(super) fn check(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(Trouble::Unflushed("an earlier flush failed".to_owned()).into());
        }
        Ok(())
    }

    /// Whether a group is on the disk.
    pub(super) fn has_reached(&self, number: u64) -> bool {
        *self.flushed.borrow() >= number
    }

    /// Waits until a group is on the disk.
    pub(crate) async fn reached(&self, number: u64) -> Result<()> {
        if *self.flushed.borrow() < number {
            // The sender is in `self`, so the channel is open.
            let _ = self.flushed.subscribe().wait_for(|flushed| *flushed >= number).await;
        }
        self.check()
    }

    /// Flushes the log up to and with a group, unless nothing was written. After a flush that failed, here or
    /// beside, the next one may succeed, but what it follows in the log is lost all the same.
    pub(super) fn flush(&self, log: &mut Log, number: u64, has_written: bool) -> Result<()> {
        let flushed = self.check().and_then(|()| if has_written { log.flush() } else { Ok(()) });
        let outcome = flushed.and_then(|()| self.check());
        if outcome.is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
        self.flushed.send_modify(|flushed| *flushed = number.max(*flushed));
        outcome
    }
}

/// The write-ahead log, to be flushed.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: Option<File>,
}

impl Log {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// Waits until everything that was written to it is on the disk.
    pub(super) fn flush(&mut self) -> Result<()> {
        let failed = |error: std::io::Error| Trouble::Unflushed(format!("{}: {error}", self.path.display()));
        // It exists from the first commit on, and for as long as a connection is open.
        let file = match self.file.take() {
            Some(file) => file,
            None => File::open(&self.path).map_err(failed)?,
        };
        file.sync_data().map_err(failed)?;
        self.file = Some(file);
        Ok(())
    }
}

/// The thread that flushes.
#[derive(Debug)]
pub(super) struct Flusher {
    groups: Option<Sender<Committed>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    pub(super) fn start(log: Log, durability: Durability, topics: Arc<Topics>, growth: Growth) -> Result<Self> {
        let (groups, queue) = crossbeam_channel::unbounded();
        let thread = std::thread::Builder::new()
            .name("ff-sqlite-flush".into())
            .spawn(move || serve(log, growth, &durability, &topics, &queue))
            .map_err(|error| Trouble::Other(format!("the flusher's thread does not start: {error}")))?;
        Ok(Self { groups: Some(groups), thread: Some(thread) })
    }

    /// Has a committed group flushed and answered.
    pub(super) fn take_over(&self, committed: Committed) {
        if let Some(groups) = &self.groups {
            // Without the thread the way back is dropped, and that tells the callers.
            let _ = groups.send(committed);
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.groups.take();
        if let Some(thread) = self.thread.take() {
            // One that panicked has told its callers by dropping them.
            let _ = thread.join();
        }
    }
}

fn serve(mut log: Log, mut growth: Growth, durability: &Durability, topics: &Topics, queue: &Receiver<Committed>) {
    while let Ok(first) = queue.recv() {
        let mut all = vec![first];
        all.extend(queue.try_iter());
        let has_written = all.iter().any(|committed| committed.has_written);
        let number = all.iter().map(|committed| committed.number).max().unwrap_or(0);
        let outcome = durability.flush(&mut log, number, has_written);
        growth.note();
        for committed in all {
            publish(committed, topics, &outcome);
        }
    }
}

/// Tells the news of a group, and answers everybody in it.
pub(super) fn publish(committed: Committed, topics: &Topics, outcome: &Result<()>) {
    for topic in &committed.news {
        topics.wake(topic);
    }
    if let Some(at) = committed.due_at {
        topics.wake_due(at);
    }
    for work in committed.group {
        work.answer(outcome.clone());
    }
}
