//! Groups: many operations, one commit.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use ff_core::{EngineError, Result};

use super::desk::Desk;
use super::work::Work;
use super::{Alone, Job};

/// Operations that one commit carries at most.
const GROUP_MAX: usize = 128;

/// How often to look again for callers that were just answered and are about to ask again, before sleeping.
const LOOKS_IDLE: usize = 200;

/// The same before committing without them.
const LOOKS_BUSY: usize = 24;

/// What waits for the writer.
pub(super) struct Queue<'q> {
    jobs: &'q Receiver<Job>,
    /// What is to be done before anything else is taken.
    alone: Option<Alone>,
    /// How many the last group had.
    answered: usize,
}

/// What the writer is to do next.
pub(super) enum Next {
    /// Begin a group with this.
    Group(Box<dyn Work>),
    /// This, between two groups.
    Alone(Alone),
    /// Look around: somebody began to listen, or somebody wrote.
    Look,
    /// Nothing came for a while.
    Nothing,
    /// End: nobody is left to ask for anything.
    End,
}

impl<'q> Queue<'q> {
    pub(super) const fn new(jobs: &'q Receiver<Job>) -> Self {
        Self { jobs, alone: None, answered: 0 }
    }

    /// Whether nobody waits.
    fn is_empty(&self) -> bool {
        self.alone.is_none() && self.jobs.is_empty()
    }

    /// Waits for something to do, at most for `patience`, if that is given.
    pub(super) fn wait(&mut self, patience: Option<Duration>) -> Next {
        if let Some(job) = self.alone.take() {
            return Next::Alone(job);
        }
        let job = match (self.look(0, LOOKS_IDLE), patience) {
            (Some(job), _) => Ok(job),
            (None, Some(patience)) => self.jobs.recv_timeout(patience),
            (None, None) => self.jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match job {
            Ok(Job::Work(work)) => Next::Group(work),
            Ok(Job::Alone(job)) => Next::Alone(job),
            Ok(Job::Look) => Next::Look,
            Err(RecvTimeoutError::Timeout) => Next::Nothing,
            Err(RecvTimeoutError::Disconnected) => Next::End,
        }
    }

    /// The next operation for a group that has some.
    fn next(&mut self, group: usize) -> Option<Box<dyn Work>> {
        while self.alone.is_none() && group < GROUP_MAX {
            match self.look(group, LOOKS_BUSY)? {
                Job::Work(work) => return Some(work),
                Job::Alone(job) => self.alone = Some(job),
                // The group has looked when it began.
                Job::Look => {}
            }
        }
        None
    }

    /// Looks for a job. After a group of several, those that were answered are given a few moments to come back; a single caller is never
    /// waited for.
    fn look(&self, group: usize, looks: usize) -> Option<Job> {
        for _ in 0..looks {
            if let Ok(job) = self.jobs.try_recv() {
                return Some(job);
            }
            if group.max(1) >= self.answered {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }
}

/// Why a group was not committed.
enum Failure {
    /// It could not even begin, so no part of it is to blame.
    Outside(EngineError),
    /// One of its parts, or all of them together, could not be written.
    Inside(EngineError),
}

/// Runs a group in one transaction, with all that come while it runs; everybody is answered when it is durable. When it cannot be
/// committed as a whole, each runs on its own, so that nobody pays for another's trouble.
pub(super) fn run(desk: &mut Desk, first: Box<dyn Work>, queue: &mut Queue<'_>) {
    let mut group = Vec::with_capacity(queue.answered.max(1));
    let outcome = attempt(desk, &mut group, Some(first), |group| queue.next(group));
    queue.answered = group.len();
    match outcome {
        Ok(()) => desk.make_durable(group, queue.is_empty()),
        Err(Failure::Inside(_)) if group.len() > 1 => run_singly(desk, group),
        Err(Failure::Inside(error) | Failure::Outside(error)) => refuse(group, &error),
    }
}

fn run_singly(desk: &mut Desk, group: Vec<Box<dyn Work>>) {
    let mut group = group.into_iter();
    while let Some(work) = group.next() {
        let mut single = Vec::new();
        match attempt(desk, &mut single, Some(work), |_| None) {
            Ok(()) => desk.make_durable(single, true),
            Err(Failure::Inside(error)) => refuse(single, &error),
            // Whoever keeps this one out keeps out the others, and each would wait as long.
            Err(Failure::Outside(error)) => {
                single.extend(group);
                return refuse(single, &error);
            }
        }
    }
}

fn refuse(group: Vec<Box<dyn Work>>, error: &EngineError) {
    for work in group {
        work.answer(Err(error.clone()));
    }
}

fn attempt(
    desk: &mut Desk,
    group: &mut Vec<Box<dyn Work>>,
    mut next: Option<Box<dyn Work>>,
    mut more: impl FnMut(usize) -> Option<Box<dyn Work>>,
) -> Result<(), Failure> {
    let begun = desk.begin();
    let mut run = || -> Result<()> {
        while let Some(mut work) = next.take() {
            let ran = if work.is_wanted() { work.run(desk) } else { Ok(()) };
            group.push(work);
            ran?;
            next = more(group.len());
        }
        desk.commit()
    };
    match begun {
        Ok(()) => run().map_err(|error| {
            desk.roll_back();
            Failure::Inside(error)
        }),
        Err(error) => {
            // Whoever waits by now would wait in turn for the same lock.
            while let Some(work) = next.take() {
                group.push(work);
                next = more(group.len());
            }
            Err(Failure::Outside(error))
        }
    }
}
