//! Young executions, found by id, by age and by queue.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ff_core::ids::ExecutionId;
use ff_engine::hash::HashMap;
use ff_engine::index::{Bounds, Index, Position};
use ff_engine::queues::Queues;

use super::Birth;
use crate::address::Stored;

#[derive(Debug)]
struct Youth {
    stored: Arc<Stored>,
    birth: Birth,
    /// The line that tells of its creation.
    line: u64,
}

/// Those of one moment.
#[derive(Debug, Default)]
pub(super) struct Rows {
    by_id: HashMap<ExecutionId, Youth>,
    by_age: BTreeMap<Birth, ExecutionId>,
    /// Those that can be claimed, in the order of each queue. Other lists are gathered when somebody asks.
    queues: Queues,
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn get(&self, id: ExecutionId) -> Option<&Arc<Stored>> {
        self.by_id.get(&id).map(|youth| &youth.stored)
    }

    /// Takes over what an execution is now; `line` tells of it.
    pub(super) fn put(&mut self, id: ExecutionId, stored: Option<Arc<Stored>>, line: u64) {
        let before = self.by_id.remove(&id);
        let old = before.as_ref().map_or(&[][..], |youth| youth.stored.entries());
        self.queues.shift(id, old, stored.as_ref().map_or(&[][..], |stored| stored.entries()));
        match (before, stored) {
            (Some(before), Some(stored)) => drop(self.by_id.insert(id, Youth { stored, ..before })),
            (Some(before), None) => drop(self.by_age.remove(&before.birth)),
            (None, Some(stored)) => {
                let birth = stored.birth.unwrap_or_default();
                self.by_age.insert(birth, id);
                self.by_id.insert(id, Youth { stored, birth, line });
            }
            (None, None) => {}
        }
    }

    /// Gives an execution another version, if it is young.
    pub(super) fn touch(&mut self, id: ExecutionId, version: i64) {
        if let Some(youth) = self.by_id.get_mut(&id) {
            youth.stored = Arc::new(youth.stored.at_version(version));
        }
    }

    /// Up to so many of the oldest, born up to one of them, as long as each can be had.
    pub(super) fn oldest(
        &self,
        until: Birth,
        limit: usize,
        can_be_had: impl Fn(ExecutionId) -> bool,
    ) -> Vec<(ExecutionId, Arc<Stored>)> {
        let by_age = self.by_age.range(..=until).take(limit).map(|(_, id)| *id);
        let had = by_age.take_while(|id| can_be_had(*id));
        had.filter_map(|id| Some((id, Arc::clone(self.get(id)?)))).collect()
    }

    /// The line that tells of the creation of the oldest that was born after another.
    pub(super) fn first_line_after(&self, birth: Birth) -> Option<u64> {
        let later = self.by_age.range((Bound::Excluded(birth), Bound::Unbounded));
        later.filter_map(|(_, id)| self.by_id.get(id)).map(|youth| youth.line).min()
    }

    /// Where they stand in an index of columns.
    pub(super) fn list(&self, index: &Index, bounds: &Bounds) -> Vec<(Position, ExecutionId)> {
        let all =
            self.by_id.iter().flat_map(|(id, youth)| youth.stored.entries().iter().map(move |entry| (entry, *id)));
        self.queues.list(index, bounds, all)
    }
}
