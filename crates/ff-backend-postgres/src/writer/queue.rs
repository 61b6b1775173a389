//! What waits to be decided. Whichever desk is free takes all of it, but for operations on partitions that another desk has in hand: they
//! would get into each other's way.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::partition::Partition;
use ff_engine::store::Reach;
use tokio::sync::Notify;

use super::work::Work;

/// Operations that one commit carries at most.
const GROUP_MAX: usize = 128;

/// How often those who were just answered get a chance to ask again, before a group begins without them.
const CHANCES: usize = 2;

#[derive(Default)]
struct State {
    waiting: VecDeque<Box<dyn Work>>,
    busy: HashSet<Partition>,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    news: Notify,
}

/// Operations that are decided and committed together. Their partitions are free again when it is dropped.
pub(super) struct Round {
    pub(super) group: Vec<Box<dyn Work>>,
    homes: HashSet<Partition>,
    queue: Arc<Queue>,
}

impl Drop for Round {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.busy.retain(|home| !self.homes.contains(home));
        if !state.waiting.is_empty() {
            self.queue.news.notify_one();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, work: Box<dyn Work>) {
        self.lock().waiting.push_back(work);
        self.news.notify_one();
    }

    /// Waits until there is something to do.
    pub(super) async fn next(self: &Arc<Self>) -> Round {
        loop {
            for _ in 0..CHANCES {
                tokio::task::yield_now().await;
            }
            if let Some(round) = self.take() {
                return round;
            }
            self.news.notified().await;
        }
    }

    fn take(self: &Arc<Self>) -> Option<Round> {
        let mut state = self.lock();
        let State { waiting, busy } = &mut *state;
        let (mut group, mut homes, mut left) = (Vec::new(), HashSet::new(), VecDeque::new());
        for work in waiting.drain(..).filter(|work| work.is_wanted()) {
            let home = (work.reach() == Reach::Home).then(|| work.home());
            if group.len() == GROUP_MAX || home.is_some_and(|home| busy.contains(&home)) {
                left.push_back(work);
            } else {
                homes.extend(home);
                group.push(work);
            }
        }
        *waiting = left;
        busy.extend(&homes);
        (!group.is_empty()).then(|| Round { group, homes, queue: Arc::clone(self) })
    }
}
