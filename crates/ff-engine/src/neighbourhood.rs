//! Where executions that are created one after another live: together, on a store that gains nothing from keeping them apart.
//!
//! A store whose transactions look at all partitions has one writer, and its keys begin with the partition. Executions of the same moment
//! that share a partition share pages of every table and index; spread over all of them, each would touch pages of its own.

use std::sync::atomic::{AtomicU32, Ordering};

use ff_core::partition::PartitionCounts;
use uuid::Uuid;

/// Executions that come to live in the same partition one after another.
const NEIGHBOURS: u32 = 64;

/// The partition of the latest executions, and how many more are to follow them.
#[derive(Debug, Default)]
pub(crate) struct Neighbourhood(AtomicU32);

impl Neighbourhood {
    /// A UUID for a new execution that has no key to go by. The first of a neighbourhood goes where chance puts it, the others follow.
    pub(crate) fn place(&self, counts: &PartitionCounts, uuid: Uuid) -> Uuid {
        let by_chance = counts.spread_index(uuid);
        let founded = u32::from(by_chance) << 16 | (NEIGHBOURS - 1);
        let joined = |place: u32| if left(place) == 0 { founded } else { place - 1 };
        let before = self.0.update(Ordering::Relaxed, Ordering::Relaxed, joined);
        if left(before) == 0 {
            return uuid;
        }
        let index = u16::try_from(before >> 16).unwrap_or(by_chance);
        counts.spread_uuid_in(index, uuid).unwrap_or(uuid)
    }
}

/// How many more are to follow.
const fn left(place: u32) -> u32 {
    place & 0xffff
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn neighbours_share_a_partition_and_neighbourhoods_are_spread() {
        let (counts, neighbourhood) = (PartitionCounts::default(), Neighbourhood::default());
        let mut inhabitants: BTreeMap<u16, u32> = BTreeMap::new();
        for number in 0..u128::from(NEIGHBOURS) * 100 {
            let uuid = Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0000 + number * 0x1_2345_6789);
            let placed = neighbourhood.place(&counts, uuid);
            *inhabitants.entry(counts.spread_index(placed)).or_default() += 1;
        }
        assert!(inhabitants.values().all(|count| count.is_multiple_of(NEIGHBOURS)), "{inhabitants:?}");
        assert!(inhabitants.len() > 50, "{inhabitants:?}");
    }
}
