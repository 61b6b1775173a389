//! What a commit takes for itself while it checks and writes.
//!
//! What belongs to an execution is taken together with it, and beside that its partition, shared: so commits about different executions do
//! not wait for each other, and who needs a whole partition waits for all of them. Everything else is taken with its partition.

use std::collections::BTreeMap;

use ff_core::ids::ExecutionId;
use ff_core::partition::Partition;
use ff_engine::key::Key;

use crate::address::Address;

/// Executions that one commit takes one by one. With more of them it takes whole partitions: the server has room for so many locks only.
const EXECUTIONS_MAX: usize = 256;

/// The number of the journal among the locks, before all others: who has it shared knows that its owner stays the same.
pub(super) const JOURNAL: i32 = -1;

/// Partitions, and whether they are written.
pub(crate) type Places = BTreeMap<Partition, bool>;

/// What a try has for itself before it reads.
#[derive(Clone, Debug)]
pub(crate) enum Hold {
    /// It only finds out at the end whether anything has changed.
    Nothing,
    Partitions(Places),
    /// Nobody else commits.
    Everything,
}

impl Hold {
    pub(super) const fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Whether nobody else can change anything in a partition.
    pub(super) fn covers(&self, partition: Partition) -> bool {
        match self {
            Self::Nothing => false,
            Self::Partitions(places) => places.contains_key(&partition),
            Self::Everything => true,
        }
    }

    /// Holds these, too.
    pub(super) fn widen(&mut self, more: Places) {
        match self {
            Self::Nothing => *self = Self::Partitions(more),
            Self::Partitions(places) => {
                for (place, is_written) in more {
                    *places.entry(place).or_default() |= is_written;
                }
            }
            Self::Everything => {}
        }
    }
}

/// Places, and whether they are written.
#[derive(Debug, Default)]
pub(super) struct Locks {
    partitions: Places,
    executions: BTreeMap<ExecutionId, bool>,
}

impl Locks {
    /// Takes the place of a key.
    pub(super) fn take(&mut self, key: &Key, is_written: bool) {
        match key.execution_id() {
            Some(id) => self.take_execution(id, is_written),
            None => *self.partitions.entry(key.partition).or_default() |= is_written,
        }
    }

    /// Takes the place of a row.
    pub(super) fn take_address(&mut self, address: &Address, is_written: bool) {
        match address {
            Address::Execution(id) => self.take_execution(*id, is_written),
            Address::Record(key) => self.take(key, is_written),
        }
    }

    /// Takes the place of an execution.
    pub(super) fn take_execution(&mut self, id: ExecutionId, is_written: bool) {
        self.partitions.entry(id.partition()).or_default();
        *self.executions.entry(id).or_default() |= is_written;
    }

    /// Their numbers in the order in which everybody takes them, and which of them are shared.
    pub(super) fn numbered(mut self) -> (Vec<i32>, Vec<bool>) {
        if self.executions.len() > EXECUTIONS_MAX {
            for (id, is_written) in std::mem::take(&mut self.executions) {
                *self.partitions.entry(id.partition()).or_default() |= is_written;
            }
        }
        let mut numbers = numbered(self.partitions);
        for (id, is_written) in self.executions {
            *numbers.entry(execution_place(id)).or_default() |= is_written;
        }
        in_columns(numbers)
    }
}

/// The numbers of partitions, and of the journal, which everybody shares.
fn numbered(partitions: impl IntoIterator<Item = (Partition, bool)>) -> BTreeMap<i32, bool> {
    let partitions = partitions.into_iter().map(|(partition, is_written)| (place(partition), is_written));
    std::iter::once((JOURNAL, false)).chain(partitions).collect()
}

fn in_columns(numbers: BTreeMap<i32, bool>) -> (Vec<i32>, Vec<bool>) {
    numbers.into_iter().map(|(number, is_written)| (number, !is_written)).unzip()
}

/// The numbers of partitions in the order in which everybody takes them, and which of them are shared.
pub(super) fn partitions(places: &Places) -> (Vec<i32>, Vec<bool>) {
    in_columns(numbered(places.iter().map(|(partition, is_written)| (*partition, *is_written))))
}

/// The number of a partition among the locks, in the order of partitions.
fn place(partition: Partition) -> i32 {
    partition.to_bytes().into_iter().fold(0, |number, byte| number << 8 | i32::from(byte))
}

/// The number of an execution, behind those of all partitions. Two that share one only wait for each other.
fn execution_place(id: ExecutionId) -> i32 {
    let (high, low) = id.uuid().as_u64_pair();
    let mixed = (high ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 34;
    i32::try_from(mixed | 1 << 30).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(7, Uuid::from_u128(number))
    }

    #[test]
    fn an_execution_is_taken_behind_its_partition_which_others_share() {
        let mut locks = Locks::default();
        locks.take(&Key::payload(id(1)), true);
        locks.take(&Key::execution(id(2)), false);
        let (numbers, shared) = locks.numbered();
        assert_eq!(numbers[..2], [JOURNAL, place(id(1).partition())]);
        assert!(numbers.is_sorted() && numbers[2] >= 1 << 30, "{numbers:?}");
        let mut executions = [(execution_place(id(1)), false), (execution_place(id(2)), true)];
        executions.sort_unstable();
        assert_eq!(shared, [true, true, executions[0].1, executions[1].1]);
    }

    #[test]
    fn many_executions_are_taken_by_partition() {
        let mut locks = Locks::default();
        for number in 0..=EXECUTIONS_MAX {
            locks.take(&Key::execution(id(number as u128)), true);
        }
        assert_eq!(locks.numbered(), (vec![JOURNAL, place(id(0).partition())], vec![true, false]));
    }
}
