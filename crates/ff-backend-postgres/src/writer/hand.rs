//! Which executions of queues are being taken. Whoever looks for work passes over what another desk of this process has in its hands, and over
//! what was taken since it began to look: to choose the same would only make one of them try again.
//!
//! Who passed something over may have gone to sleep because of it. So when it is let go untaken, everybody who waits looks again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::ids::ExecutionId;
use ff_engine::hash::HashMap;
use ff_engine::topics::Topics;

#[derive(Debug, Default)]
struct State {
    /// Grows with everybody who begins or ends.
    tick: u64,
    /// When those who still look have begun.
    looking: BTreeSet<u64>,
    held: HashMap<ExecutionId, Held>,
}

#[derive(Debug)]
struct Held {
    owner: u64,
    /// When it was taken for good; others may still have read it as it was before.
    taken_at: Option<u64>,
    /// Whether its owner has decided to take it.
    is_chosen: bool,
    /// Whether somebody else would have liked it.
    is_passed_over: bool,
}

/// What is in anybody's hands.
#[derive(Clone, Debug)]
pub(super) struct Hands {
    state: Arc<Mutex<State>>,
    topics: Arc<Topics>,
}

/// What one of them holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Hand {
    hands: Hands,
    began: u64,
    is_committed: AtomicBool,
}

impl Hands {
    pub(super) fn new(topics: Arc<Topics>) -> Self {
        Self { state: Arc::default(), topics }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to look.
    pub(super) fn open(&self) -> Hand {
        let mut state = self.lock();
        state.tick += 1;
        let began = state.tick;
        state.looking.insert(began);
        Hand { hands: self.clone(), began, is_committed: AtomicBool::new(false) }
    }
}

impl Hand {
    /// Holds it, unless somebody else does or took it a moment ago; says whether it does.
    pub(super) fn hold(&self, id: ExecutionId) -> bool {
        let owner = self.began;
        let mut state = self.hands.lock();
        match state.held.get_mut(&id) {
            Some(held) if held.owner == owner => true,
            Some(held) if held.taken_at.is_none_or(|at| at > owner) => {
                held.is_passed_over = true;
                false
            }
            _ => {
                state.held.insert(id, Held { owner, taken_at: None, is_chosen: false, is_passed_over: false });
                true
            }
        }
    }

    /// Decides to take it, if it holds it.
    pub(super) fn choose(&self, id: ExecutionId) {
        if let Some(held) = self.hands.lock().held.get_mut(&id).filter(|held| held.owner == self.began) {
            held.is_chosen = true;
        }
    }

    /// What was chosen is taken.
    pub(super) fn succeed(&self) {
        self.is_committed.store(true, Ordering::Relaxed);
    }

    /// How many are in hands.
    pub(super) fn held(&self) -> usize {
        self.hands.lock().held.len()
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let is_committed = *self.is_committed.get_mut();
        let mut is_somebody_missed = false;
        {
            let mut state = self.hands.lock();
            state.tick += 1;
            let State { tick, looking, held } = &mut *state;
            looking.remove(&self.began);
            let oldest = looking.first().copied().unwrap_or(u64::MAX);
            held.retain(|_, held| {
                if held.owner == self.began && held.taken_at.is_none() {
                    if !(is_committed && held.is_chosen) {
                        is_somebody_missed |= held.is_passed_over;
                        return false;
                    }
                    held.taken_at = Some(*tick);
                }
                held.taken_at.is_none_or(|at| at > oldest)
            });
        }
        if is_somebody_missed {
            self.hands.topics.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use uuid::Uuid;

    use super::*;

    fn scene() -> (Hands, ExecutionId) {
        (Hands::new(Arc::default()), ExecutionId::new(1, Uuid::from_u128(1)))
    }

    #[test]
    fn what_another_holds_or_took_since_one_began_is_elsewhere() {
        let (hands, id) = scene();
        let (one, other) = (hands.open(), hands.open());
        assert!(one.hold(id));
        one.choose(id);
        assert!(!other.hold(id) && one.hold(id));
        one.succeed();
        drop(one);
        assert!(!other.hold(id), "it may have been read before");
        let later = hands.open();
        assert!(later.hold(id), "it reads what became of it");
        assert!(!other.hold(id) && !hands.open().hold(id), "it has a new owner");
        drop((other, later));
        assert_eq!(hands.lock().held.len(), 0);
    }

    #[test]
    fn what_is_let_go_untaken_is_there_again_and_wakes_who_passed_it_over() {
        // Neither a choice that was not committed takes anything, nor a commit without a choice.
        for (is_chosen, is_committed) in [(true, false), (false, true)] {
            let (hands, id) = scene();
            let (mut news, _) = hands.topics.listen(&ff_engine::index::Topic::Events);
            let (one, other) = (hands.open(), hands.open());
            assert!(one.hold(id) && !other.hold(id));
            if is_chosen {
                one.choose(id);
            }
            if is_committed {
                one.succeed();
            }
            drop(one);
            assert!(other.hold(id));
            assert!((&mut news).now_or_never().is_some(), "it would sleep although there is work");
        }
    }

    #[test]
    fn what_is_taken_wakes_nobody() {
        let (hands, id) = scene();
        let (mut news, _) = hands.topics.listen(&ff_engine::index::Topic::Events);
        let (one, other) = (hands.open(), hands.open());
        assert!(one.hold(id) && !other.hold(id));
        one.choose(id);
        one.succeed();
        drop(one);
        assert!((&mut news).now_or_never().is_none());
    }
}
