//! The tasks that run now, and the one watch over all their leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ff_core::backend::leases::{AwaitLostLeasesArgs, LeaseLoss, LostLease};
use ff_core::handle::Handle;
use ff_core::ids::{AttemptIndex, ExecutionId};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::warn;

use super::Shared;
use crate::fate::{Fate, Interruption};
use crate::task::millis;

/// A task younger than this is not watched yet: most work is over by then, and watching it would cost more than it tells.
const SETTLED: Duration = Duration::from_millis(20);

/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_millis(500);

/// What runs now.
#[derive(Default)]
pub(super) struct Board {
    tasks: Mutex<HashMap<u64, Entry>>,
    numbers: AtomicU64,
    changed: Notify,
}

/// One task that runs.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) handle: Handle,
    pub(super) execution_id: ExecutionId,
    pub(super) attempt_index: AttemptIndex,
    pub(super) fate: Fate,
    pub(super) abort: AbortHandle,
    pub(super) since: Instant,
}

/// Takes its task off the board when it ends, however it ends.
pub(super) struct Place {
    board: Arc<Board>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.board.lock().remove(&self.number);
        self.board.changed.notify_one();
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn put(self: &Arc<Self>, entry: Entry) -> Place {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, entry);
        self.changed.notify_one();
        Place { board: Arc::clone(self), number }
    }

    /// Tells every handler to stop.
    pub(super) fn interrupt_all(&self, why: &Interruption) {
        for entry in self.lock().values() {
            entry.fate.interrupt(why.clone());
        }
    }

    /// Ends every handler where it stands.
    pub(super) fn abandon_all(&self) {
        for entry in self.lock().values() {
            entry.abort.abort();
        }
    }

    /// Leases worth watching, and how long until another one is.
    fn watched(&self) -> (Vec<Handle>, Option<Duration>) {
        let (now, mut young, mut handles) = (Instant::now(), None, Vec::new());
        for entry in self.lock().values().filter(|entry| !entry.fate.is_lost() && !entry.fate.is_parked()) {
            let age = now.duration_since(entry.since);
            if age >= SETTLED {
                handles.push(entry.handle.clone());
            } else {
                let left = SETTLED - age;
                young = Some(young.map_or(left, |least: Duration| least.min(left)));
            }
        }
        (handles, young)
    }

    fn tell(&self, lost: Vec<LostLease>) {
        let tasks = self.lock();
        for LostLease { execution_id, attempt_index, loss } in lost {
            let same = |entry: &&Entry| entry.execution_id == execution_id && entry.attempt_index == attempt_index;
            for entry in tasks.values().filter(same) {
                entry.fate.interrupt(interruption(&loss));
            }
        }
    }
}

/// A loss as the handler hears of it.
pub(super) fn interruption(loss: &LeaseLoss) -> Interruption {
    let detail = match loss {
        LeaseLoss::Cancelled { reason } => return Interruption::Cancelled { reason: reason.clone() },
        LeaseLoss::Ended { public_state } => format!("the execution is {public_state}"),
        LeaseLoss::Expired => "the lease ran out".to_owned(),
        LeaseLoss::Revoked { reason } => format!("the lease was revoked: {reason}"),
        LeaseLoss::Superseded => "another worker has the execution".to_owned(),
        LeaseLoss::Missing => "the execution is gone".to_owned(),
    };
    Interruption::LeaseLost { detail }
}

/// Watches the leases of all tasks at once, for as long as the worker lives.
pub(super) async fn watch(shared: Arc<Shared>, board: Arc<Board>) {
    loop {
        let changed = board.changed.notified();
        let (handles, young) = board.watched();
        let settled = async {
            match young {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            lost = lost_of(&shared, handles) => board.tell(lost),
            () = changed => tokio::time::sleep(SETTLED).await,
            () = settled => {}
        }
    }
}

async fn lost_of(shared: &Shared, handles: Vec<Handle>) -> Vec<LostLease> {
    if handles.is_empty() {
        return std::future::pending().await;
    }
    let args = AwaitLostLeasesArgs {
        worker_instance_id: shared.instance_id.clone(),
        handles,
        max_wait_ms: millis(shared.poll),
    };
    match shared.backend.await_lost_leases(args).await {
        Ok(lost) => lost,
        Err(error) => {
            warn!(%error, "cannot watch leases; renewals still notice a loss");
            tokio::time::sleep(PAUSE).await;
            Vec::new()
        }
    }
}
