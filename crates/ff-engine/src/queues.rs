//! Queues of executions that a store keeps in memory for a while.

use std::collections::BTreeMap;
use std::ops::Bound;

use ff_core::ids::ExecutionId;

use crate::hash::HashMap;
use crate::index::{Bounds, Entry, Index, Position};

/// Executions that can be claimed, in the order of each queue.
#[derive(Debug, Default)]
pub struct Queues(HashMap<Index, BTreeMap<Position, ExecutionId>>);

impl Queues {
    /// Moves an execution from where it stood to where it stands, as all its entries say.
    pub fn shift(&mut self, id: ExecutionId, before: &[Entry], after: &[Entry]) {
        let (before, after) = (queued(before), queued(after));
        if before == after {
            return;
        }
        if let Some(Entry { index, position }) = before
            && let Some(queue) = self.0.get_mut(index)
        {
            queue.remove(position);
            if queue.is_empty() {
                self.0.remove(index);
            }
        }
        if let Some(Entry { index, position }) = after {
            self.0.entry(index.clone()).or_default().insert(position.clone(), id);
        }
    }

    /// Where executions stand in an index; what no queue tells is gathered from the entries of all of them.
    #[must_use]
    pub fn list<'e>(
        &self,
        index: &Index,
        bounds: &Bounds,
        all: impl Iterator<Item = (&'e Entry, ExecutionId)>,
    ) -> Vec<(Position, ExecutionId)> {
        if let Some(found) = self.first(index, bounds) {
            return found;
        }
        let within = all.filter(|(entry, _)| entry.index == *index && bounds.contains(&entry.position));
        let mut found: Vec<_> = within.map(|(entry, id)| (entry.position.clone(), id)).collect();
        found.sort();
        if bounds.reverse {
            found.reverse();
        }
        found.truncate(bounds.limit);
        found
    }

    /// The first of a queue within bounds; none if that is no question to a queue.
    fn first(&self, index: &Index, bounds: &Bounds) -> Option<Vec<(Position, ExecutionId)>> {
        if !matches!(index, Index::Eligible(..)) || bounds.reverse {
            return None;
        }
        let after = bounds.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let queue = self.0.get(index).into_iter().flat_map(|queue| queue.range((after, Bound::Unbounded)));
        let within = queue.take_while(|(position, _)| bounds.contains(position)).take(bounds.limit);
        Some(within.map(|(position, id)| (position.clone(), *id)).collect())
    }
}

fn queued(entries: &[Entry]) -> Option<&Entry> {
    entries.iter().find(|entry| matches!(entry.index, Index::Eligible(..)))
}

#[cfg(test)]
mod tests {
    use ff_core::ids::{ExecutionKind, LaneId, Namespace};
    use uuid::Uuid;

    use super::*;
    use crate::records::QueueClass;

    fn queue(kind: &str) -> Index {
        let class = QueueClass::plain(ExecutionKind::new(kind).unwrap());
        Index::Eligible(Namespace::new("acme").unwrap(), LaneId::new("default").unwrap(), class)
    }

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(1, Uuid::from_u128(number))
    }

    fn entry(kind: &str, rank: i64, number: u128) -> Entry {
        Entry { index: queue(kind), position: Position::of(rank, id(number)) }
    }

    fn listed(queues: &Queues, kind: &str, bounds: &Bounds) -> Vec<ExecutionId> {
        queues.list(&queue(kind), bounds, std::iter::empty()).into_iter().map(|(_, id)| id).collect()
    }

    #[test]
    fn executions_stand_in_order_where_their_entries_say() {
        let mut queues = Queues::default();
        for (rank, number) in [(3, 1), (1, 2), (2, 3)] {
            queues.shift(id(number), &[], &[entry("mail", rank, number)]);
        }
        assert_eq!(listed(&queues, "mail", &Bounds::first(9)), [id(2), id(3), id(1)]);
        let after = Bounds::first(1).after(Some(Position::of(1, id(2))));
        assert_eq!(listed(&queues, "mail", &after), [id(3)]);

        queues.shift(id(3), &[entry("mail", 2, 3)], &[entry("call", 2, 3)]);
        queues.shift(id(2), &[entry("mail", 1, 2)], &[]);
        assert_eq!(listed(&queues, "mail", &Bounds::first(9)), [id(1)]);
        assert_eq!(listed(&queues, "call", &Bounds::first(9)), [id(3)]);
    }

    #[test]
    fn what_no_queue_tells_is_gathered_in_order() {
        let created =
            |at, number| (Entry { index: Index::Created, position: Position::of(at, id(number)) }, id(number));
        let all = [created(2, 1), created(3, 2), created(1, 3), (entry("mail", 1, 4), id(4))];
        let gathered = |index: &Index, bounds: &Bounds| {
            let listed = Queues::default().list(index, bounds, all.iter().map(|(entry, id)| (entry, *id)));
            listed.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
        };
        assert_eq!(gathered(&Index::Created, &Bounds::first(2)), [id(3), id(1)]);
        assert_eq!(gathered(&Index::Created, &Bounds::last(2)), [id(2), id(1)]);
        assert_eq!(gathered(&queue("mail"), &Bounds::last(1)), [id(4)], "backwards is no question to a queue");
    }
}
