//! What waits to be decided.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::work::Work;

/// Operations that one commit carries at most.
const GROUP_MAX: usize = 256;

/// How often those who were just answered get a chance to ask again, before a group begins without them.
const CHANCES: usize = 2;

pub(super) type Group = Vec<Box<dyn Work>>;

/// Operations that are decided and committed together.
pub(super) struct Round {
    pub(super) group: Group,
    /// How often they were tried in vain.
    pub(super) tries: u32,
    /// When they were tried first.
    pub(super) began: Instant,
}

impl Round {
    pub(super) fn new(group: Group) -> Self {
        Self { group, tries: 0, began: Instant::now() }
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Box<dyn Work>>,
    /// To be tried again.
    failed: VecDeque<Round>,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    news: Notify,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, work: Box<dyn Work>) {
        self.lock().waiting.push_back(work);
        self.news.notify_one();
    }

    /// Has a group tried again, before anybody else.
    pub(super) fn push_again(&self, round: Round) {
        self.lock().failed.push_back(round);
        self.news.notify_one();
    }

    /// Has each operation of a group tried alone.
    pub(super) fn push_singly(&self, round: Round) {
        let Round { group, tries, began } = round;
        self.lock().failed.extend(group.into_iter().map(|work| Round { group: vec![work], tries, began }));
        self.news.notify_one();
    }

    /// Waits until there is something to do, and takes all of it.
    pub(super) async fn next(&self) -> Round {
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

    fn take(&self) -> Option<Round> {
        let mut state = self.lock();
        if let Some(round) = state.failed.pop_front() {
            return Some(round);
        }
        let mut group = Group::new();
        while group.len() < GROUP_MAX
            && let Some(work) = state.waiting.pop_front()
        {
            if work.is_wanted() {
                group.push(work);
            }
        }
        (!group.is_empty()).then(|| Round::new(group))
    }
}
