//! The tasks that run now, and the watch over all their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_core::backend::leases::{AwaitLostLeasesArgs, LostLease};
use ff_core::handle::Handle;
use ff_core::ids::{AttemptIndex, ExecutionId};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::{Shared, pause_if_early};
use crate::fate::{Fate, Interruption};
use crate::task::millis;

/// A task younger than this is not watched yet: most work is over by then, and watching it would cost more than it tells.
const SETTLED: Duration = Duration::from_millis(20);

/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// What runs now.
#[derive(Default)]
pub(super) struct Board {
    tasks: Mutex<Tasks>,
    changed: Notify,
}

#[derive(Default)]
struct Tasks {
    all: HashMap<u64, Entry>,
    next: u64,
    /// Said to whoever comes, too.
    told: Option<Interruption>,
}

struct Entry {
    handle: Handle,
    execution_id: ExecutionId,
    attempt_index: AttemptIndex,
    fate: Fate,
    since: Instant,
    is_watched: bool,
}

/// Takes its task off the board when it ends, however it ends.
pub(super) struct Place {
    board: Arc<Board>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.board.lock().all.remove(&self.number);
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().all.len()
    }

    pub(super) fn put(
        self: &Arc<Self>,
        handle: &Handle,
        (execution_id, attempt_index): (ExecutionId, AttemptIndex),
        fate: &Fate,
    ) -> Place {
        let (handle, fate, since) = (handle.clone(), fate.clone(), Instant::now());
        let mut tasks = self.lock();
        if let Some(told) = &tasks.told {
            fate.interrupt(told.clone());
        }
        let number = tasks.next;
        tasks.next += 1;
        tasks.all.insert(number, Entry { handle, execution_id, attempt_index, fate, since, is_watched: false });
        drop(tasks);
        self.changed.notify_one();
        Place { board: Arc::clone(self), number }
    }

    /// Tells every handler to stop, and those that come after.
    pub(super) fn interrupt_all(&self, why: &Interruption) {
        let mut tasks = self.lock();
        tasks.told = Some(why.clone());
        for entry in tasks.all.values() {
            entry.fate.interrupt(why.clone());
        }
    }

    /// Leases that nobody watches although they are old enough, and when another one is.
    fn unwatched(&self) -> (HashMap<u64, Handle>, Option<Instant>) {
        let (now, mut next, mut batch) = (Instant::now(), None, HashMap::new());
        for (number, entry) in &mut self.lock().all {
            if entry.is_watched || !entry.fate.is_ours() {
                continue;
            }
            let settles_at = entry.since + SETTLED;
            if settles_at <= now {
                entry.is_watched = true;
                batch.insert(*number, entry.handle.clone());
            } else {
                next = Some(next.map_or(settles_at, |least: Instant| least.min(settles_at)));
            }
        }
        (batch, next)
    }

    /// Tells those of a batch that have lost their leases; the others are to be watched again.
    fn tell(&self, batch: &[u64], lost: &[LostLease]) {
        let mut tasks = self.lock();
        for number in batch {
            let Some(entry) = tasks.all.get_mut(number) else { continue };
            entry.is_watched = false;
            let theirs = |lost: &&LostLease| {
                lost.execution_id == entry.execution_id && lost.attempt_index == entry.attempt_index
            };
            if let Some(lost) = lost.iter().find(theirs)
                && !entry.fate.is_parked()
            {
                entry.fate.interrupt(Interruption::from(&lost.loss));
            }
        }
    }
}

/// Watches the leases of all tasks, for as long as the worker lives. Each call watches those that have become old enough since the one
/// before, and is left to its end: a busy worker must not keep its own watch from answering.
pub(super) async fn watch(shared: Arc<Shared>, board: Arc<Board>) {
    let mut calls: JoinSet<(Vec<u64>, Vec<LostLease>)> = JoinSet::new();
    let mut look_at: Option<Instant> = None;
    loop {
        tokio::select! {
            Some(answered) = calls.join_next() => {
                if let Ok((batch, lost)) = answered {
                    board.tell(&batch, &lost);
                }
                look_at = Some(Instant::now());
            }
            () = board.changed.notified(), if look_at.is_none() => look_at = Some(Instant::now() + SETTLED),
            () = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {
                let (batch, next) = board.unwatched();
                if !batch.is_empty() {
                    calls.spawn(lost_of(Arc::clone(&shared), batch));
                }
                look_at = next;
            }
        }
    }
}

async fn lost_of(shared: Arc<Shared>, batch: HashMap<u64, Handle>) -> (Vec<u64>, Vec<LostLease>) {
    let (numbers, handles) = batch.into_iter().unzip();
    let (worker_instance_id, max_wait_ms) = (shared.instance_id.clone(), millis(shared.poll));
    let began = Instant::now();
    let lost = match shared
        .backend
        .await_lost_leases(AwaitLostLeasesArgs { worker_instance_id, handles, max_wait_ms })
        .await
    {
        Ok(lost) => lost,
        Err(error) => {
            warn!(%error, "cannot watch leases; renewals still notice a loss");
            tokio::time::sleep(PAUSE).await;
            Vec::new()
        }
    };
    if lost.is_empty() {
        pause_if_early(began, shared.poll).await;
    }
    (numbers, lost)
}
