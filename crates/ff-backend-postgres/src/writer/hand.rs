//! Which executions of queues are being taken. Whoever looks for work passes over what another desk of this process has in its hands, and over
//! what was taken since it began to look: to choose the same would only make one of them try again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::ids::ExecutionId;

#[derive(Debug, Default)]
struct State {
    /// Grows with everybody who begins or ends.
    tick: u64,
    /// When those who still look have begun.
    looking: BTreeMap<u64, ()>,
    /// Who holds it, and when it was let go.
    held: HashMap<ExecutionId, (u64, Option<u64>)>,
}

/// What is in anybody's hands.
#[derive(Clone, Debug, Default)]
pub(super) struct Hands(Arc<Mutex<State>>);

/// What one of them holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Hand {
    hands: Hands,
    began: u64,
}

impl Hands {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to look.
    pub(super) fn open(&self) -> Hand {
        let mut state = self.lock();
        state.tick += 1;
        let began = state.tick;
        state.looking.insert(began, ());
        Hand { hands: self.clone(), began }
    }
}

impl Hand {
    /// Whether somebody else has it or had it a moment ago.
    pub(super) fn is_elsewhere(&self, id: ExecutionId) -> bool {
        match self.hands.lock().held.get(&id) {
            Some((owner, let_go)) => *owner != self.began && let_go.is_none_or(|at| at > self.began),
            None => false,
        }
    }

    /// Takes it, unless somebody else has.
    pub(super) fn take(&self, id: ExecutionId) {
        let mut state = self.hands.lock();
        let (owner, let_go) = state.held.entry(id).or_insert((self.began, None));
        if let_go.take().is_some() {
            *owner = self.began;
        }
    }

    /// How many are in other hands.
    pub(super) fn elsewhere(&self) -> usize {
        self.hands.lock().held.len()
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let mut state = self.hands.lock();
        state.tick += 1;
        let State { tick, looking, held } = &mut *state;
        looking.remove(&self.began);
        for (owner, let_go) in held.values_mut() {
            if *owner == self.began {
                *let_go = Some(*tick);
            }
        }
        let oldest = looking.keys().next().copied().unwrap_or(u64::MAX);
        held.retain(|_, (_, let_go)| let_go.is_none_or(|at| at > oldest));
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_another_holds_or_held_since_one_began_is_elsewhere() {
        let (hands, id) = (Hands::default(), ExecutionId::new(1, Uuid::from_u128(1)));
        let (one, other) = (hands.open(), hands.open());
        one.take(id);
        assert!(other.is_elsewhere(id) && !one.is_elsewhere(id));
        drop(one);
        assert!(other.is_elsewhere(id));
        let later = hands.open();
        assert!(!later.is_elsewhere(id), "it reads what became of it");
        later.take(id);
        assert!(other.is_elsewhere(id) && hands.open().is_elsewhere(id), "it has a new owner");
        drop((other, later));
        assert_eq!(hands.lock().held.len(), 0);
    }
}
