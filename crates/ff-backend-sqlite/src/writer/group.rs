//! Groups: many operations, one commit.

use crossbeam_channel::Receiver;
use ff_core::{EngineError, Result};

use super::Job;
use super::desk::Desk;
use super::work::Work;

/// Operations that one commit carries at most.
const GROUP_MAX: usize = 256;

/// How often to look again for callers that were just answered and are about to ask again.
const PATIENCE: usize = 24;

type Alone = Box<dyn FnOnce(&mut Desk) + Send>;

/// Takes what waits, up to a job that wants to be alone. After a group of several, those that were answered are given a few moments
/// to come back, as long as they do come; a single caller is never waited for.
pub(super) fn gather(
    first: Job,
    queue: &Receiver<Job>,
    answered: usize,
    group: &mut Vec<Box<dyn Work>>,
) -> Option<Alone> {
    let mut next = Some(first);
    let mut patience = 0;
    loop {
        match next.take() {
            Some(Job::Work(work)) => {
                group.push(work);
                patience = 0;
            }
            Some(Job::Alone(job)) => return Some(job),
            Some(Job::Listen) => {}
            None if group.len() < answered && patience < PATIENCE => {
                patience += 1;
                std::thread::yield_now();
            }
            None => return None,
        }
        if group.len() >= GROUP_MAX {
            return None;
        }
        next = queue.try_recv().ok();
    }
}

/// Why a group was not committed.
enum Failure {
    /// It could not even begin, so no part of it is to blame.
    Outside(EngineError),
    /// One of its parts, or all of them together, could not be written.
    Inside(EngineError),
}

/// Runs a group in one transaction; everybody is answered when it is durable. When it cannot be committed as a whole, each runs on its
/// own, so that nobody pays for another's trouble.
pub(super) fn run(desk: &mut Desk, mut group: Vec<Box<dyn Work>>) {
    group.retain(|work| work.is_wanted());
    match attempt(desk, &mut group) {
        Ok(()) => desk.make_durable(group),
        Err(Failure::Inside(_)) if group.len() > 1 => run_singly(desk, group),
        Err(Failure::Inside(error) | Failure::Outside(error)) => refuse(group, &error),
    }
}

fn run_singly(desk: &mut Desk, group: Vec<Box<dyn Work>>) {
    let mut group = group.into_iter();
    while let Some(work) = group.next() {
        let mut single = vec![work];
        match attempt(desk, &mut single) {
            Ok(()) => desk.make_durable(single),
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

fn attempt(desk: &mut Desk, group: &mut [Box<dyn Work>]) -> Result<(), Failure> {
    if group.is_empty() {
        return Ok(());
    }
    desk.begin().map_err(Failure::Outside)?;
    let run = group.iter_mut().try_for_each(|work| work.run(desk));
    run.and_then(|()| desk.commit()).map_err(|error| {
        desk.roll_back();
        Failure::Inside(error)
    })
}
