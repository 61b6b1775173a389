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
    /// Desks that are about to look: what comes meanwhile need not be told to another.
    looking: usize,
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
        // The desk that had it looks next, and finds what waited for it.
        state.busy.retain(|home| !self.homes.contains(home));
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
            state.looking == 0 && (state.rounds == 0 || matches!(state.waiting.len(), 1 | CROWD))
        };
        if is_news {
            self.news.notify_one();
        }
    }

    /// Waits until there is something to do.
    pub(super) async fn next(self: &Arc<Self>) -> Round {
        loop {
            self.lock().looking += 1;
            for _ in 0..CHANCES {
                tokio::task::yield_now().await;
            }
            let is_left_waiting = match self.look() {
                Ok(round) => return round,
                Err(is_left_waiting) => is_left_waiting,
            };
            if !is_left_waiting {
                self.news.notified().await;
            } else if tokio::time::timeout(PATIENCE, self.news.notified()).await.is_err()
                && let Ok(round) = self.take(&mut self.lock(), 1)
            {
                return round;
            }
        }
    }

    fn look(self: &Arc<Self>) -> Result<Round, bool> {
        let mut state = self.lock();
        state.looking -= 1;
        self.take(&mut state, CROWD)
    }

    /// Takes what it can, if there is enough of it or nothing else under way; says otherwise whether anything is left waiting.
    fn take(self: &Arc<Self>, state: &mut State, enough: usize) -> Result<Round, bool> {
        let State { waiting, busy, rounds, .. } = state;
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
        if !waiting.is_empty() {
            self.news.notify_one();
        }
        Ok(Round { group, homes, queue: Arc::clone(self) })
    }
}

#[cfg(test)]
mod tests {
    use ff_core::Result;
    use ff_core::backend::layer::BoxFuture;
    use ff_core::ids::ExecutionId;
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::super::batch::{Batch, Decision};
    use super::*;

    struct Idle;

    impl Work for Idle {
        fn is_wanted(&self) -> bool {
            true
        }

        fn home(&self) -> Partition {
            Partition::GLOBAL
        }

        fn reach(&self) -> Reach {
            Reach::Everywhere
        }

        fn newborn(&self) -> Option<ExecutionId> {
            None
        }

        fn run(&mut self, _batch: Arc<Batch>) -> BoxFuture<'_, (Decision, bool)> {
            Box::pin(async { (Decision::default(), false) })
        }

        fn answer(self: Box<Self>, _outcome: Result<()>) {}
    }

    fn push(queue: &Queue, count: usize) {
        (0..count).for_each(|_| queue.push(Box::new(Idle)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_while_a_desk_is_about_to_look_is_left_to_it() {
        let queue = Arc::<Queue>::default();
        let first = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.next().await.group.len() }
        });
        while queue.lock().looking == 0 {
            tokio::task::yield_now().await;
        }
        push(&queue, 3);
        assert!(queue.news.notified().now_or_never().is_none(), "nobody else is woken");
        assert_eq!(first.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_room_in_a_group_goes_to_another_desk() {
        let queue = Arc::<Queue>::default();
        push(&queue, GROUP_MAX + 2);
        let began = Instant::now();
        let (one, other) = tokio::join!(queue.next(), queue.next());
        let mut groups = [one.group.len(), other.group.len()];
        groups.sort_unstable();
        assert_eq!(groups, [2, GROUP_MAX]);
        assert!(began.elapsed() <= PATIENCE * 2, "the rest is not worth a group at once");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_beside_a_group_waits_for_its_end_but_not_for_long() {
        let queue = Arc::<Queue>::default();
        push(&queue, 1);
        let round = queue.next().await;
        push(&queue, 1);
        let other = queue.next();
        tokio::pin!(other);
        assert!(tokio::time::timeout(PATIENCE / 2, &mut other).await.is_err());
        assert_eq!(tokio::time::timeout(PATIENCE, other).await.unwrap().group.len(), 1);
        drop(round);
        assert_eq!(queue.lock().rounds, 0);
    }
}
