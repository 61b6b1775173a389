//! The beginning of a list, shared by all who look for work in one batch.

use std::collections::VecDeque;

use ff_engine::index::{Index, Position};
use ff_engine::key::Key;

use super::batch::Accepted;
use crate::tables::Entered;

/// The first entries of a list, without those that were taken.
#[derive(Default)]
pub(super) struct Heads {
    left: VecDeque<Entered>,
    /// Behind which entry there may be more.
    pub(super) more_after: Option<Position>,
}

impl Heads {
    /// Goes on with a page of so many at most. Those whose records are gone are left out: they must not hide who stands behind them.
    pub(super) fn extend(&mut self, page: &[Entered], limit: usize, is_there: impl Fn(&Key) -> bool) {
        self.more_after = page.last().filter(|_| page.len() == limit).map(|last| last.position.clone());
        self.left.extend(page.iter().filter(|entered| is_there(&entered.key)).cloned());
    }

    /// The first ones that are still there.
    pub(super) fn first(&mut self, limit: usize, index: &Index, accepted: &Accepted) -> Vec<Entered> {
        let is_left = |head: &Entered| match accepted.changes.get(&head.key) {
            None => true,
            Some(change) => change.after.iter().any(|entry| entry.index == *index),
        };
        while self.left.front().is_some_and(|head| !is_left(head)) {
            self.left.pop_front();
        }
        self.left.iter().filter(|head| is_left(head)).take(limit).cloned().collect()
    }
}
