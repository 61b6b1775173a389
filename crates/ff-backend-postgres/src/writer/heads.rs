//! The beginning of a list, shared by all who look for work in one batch.

use std::collections::VecDeque;

use ff_core::ids::ExecutionId;
use ff_engine::index::{Index, Position};
use ff_engine::key::Name;

use super::changes::Accepted;
use super::hand::Hand;
use crate::tables::Entered;

/// The first entries of a list, without those that were taken.
#[derive(Default)]
pub(super) struct Heads {
    pub(super) left: VecDeque<Entered>,
    /// Behind which entry there may be more.
    pub(super) more_after: Option<Position>,
    /// Whether they are not read, but as the process knows them.
    pub(super) is_mirrored: bool,
}

/// The execution that stands somewhere.
pub(super) const fn execution_in(entered: &Entered) -> Option<ExecutionId> {
    match entered.key.name {
        Name::Execution(id) => Some(id),
        _ => None,
    }
}

impl Heads {
    /// Goes on with a page of so many at most.
    pub(super) fn extend(&mut self, page: Vec<Entered>, limit: usize) {
        self.more_after = page.last().filter(|_| page.len() == limit).map(|last| last.position.clone());
        self.left.extend(page);
    }

    /// The first ones that are still there and in no other hands; they are held from then on.
    pub(super) fn first(&mut self, limit: usize, index: &Index, accepted: &Accepted, hand: &Hand) -> Vec<Entered> {
        let is_left = |head: &Entered| match accepted.changes.get(&head.key) {
            None => execution_in(head).is_none_or(|id| hand.hold(id)),
            Some(change) => change.after.iter().any(|entry| entry.index == *index),
        };
        while self.left.front().is_some_and(|head| !is_left(head)) {
            self.left.pop_front();
        }
        self.left.iter().filter(|head| is_left(head)).take(limit).cloned().collect()
    }
}
