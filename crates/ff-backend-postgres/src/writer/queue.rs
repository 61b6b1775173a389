//! What waits to be decided. Whichever desk is free takes all of it, but for operations on partitions that another desk has in hand: they
//! would get into each other's way.
//!
//! A commit costs the server much for itself and little for each operation. So the next desk begins only when there is enough for it, or when
//! the others take their time.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ff_core::partition::Partition;
use ff_engine::store::Reach;
use tokio::sync::Notify;

use super::work::Work;

/// Operations that one commit carries at most.
const GROUP_MAX: usize = 128;

/// Operations that are worth a commit of their own beside another.
const CROWD: usize = 32;

/// How long fewer of them wait for another commit to end.
const PATIENCE: Duration = Duration::from_millis(3);

/// How often those who were just answered get a chance to ask again, before a group begins without them.
const CHANCES: usize = 2;

#[derive(Default)]
struct State {
    waiting: VecDeque<Box<dyn Work>>,
    busy: HashSet<Partition>,
    /// Groups under way.
    rounds: usize,
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
        state.rounds -= 1;
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
        let is_news = {
            let mut state = self.lock();
            state.waiting.push_back(work);
            // The first one begins to wait, and with the last one they are enough; in between nobody need look.
            state.rounds == 0 || matches!(state.waiting.len(), 1 | CROWD)
        };
        if is_news {
            self.news.notify_one();
        }
    }

    /// Waits until there is something to do.
    pub(super) async fn next(self: &Arc<Self>) -> Round {
        loop {
            for _ in 0..CHANCES {
                tokio::task::yield_now().await;
            }
            let is_left_waiting = match self.take(CROWD) {
                Ok(round) => return round,
                Err(is_left_waiting) => is_left_waiting,
            };
            if !is_left_waiting {
                self.news.notified().await;
            } else if tokio::time::timeout(PATIENCE, self.news.notified()).await.is_err()
                && let Ok(round) = self.take(1)
            {
                return round;
            }
        }
    }

    /// Takes what it can, if there is enough of it or nothing else under way; says otherwise whether anything is left waiting.
    fn take(self: &Arc<Self>, enough: usize) -> Result<Round, bool> {
        let mut state = self.lock();
        let State { waiting, busy, rounds } = &mut *state;
        if *rounds > 0 && waiting.len() < enough {
            return Err(!waiting.is_empty());
        }
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
        if group.is_empty() {
            return Err(!waiting.is_empty());
        }
        busy.extend(&homes);
        *rounds += 1;
        Ok(Round { group, homes, queue: Arc::clone(self) })
    }
}
