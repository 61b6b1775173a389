//! Which keys of the server hold what. All keys of a shard carry its hash tag, so a cluster keeps them together.

use crc::{CRC_16_XMODEM, Crc};
use ff_core::ids::ExecutionId;
use ff_core::partition::{Partition, PartitionFamily};
use ff_engine::codec::{encode_index, encode_key};
use ff_engine::index::Index;
use ff_engine::key::{Key, Name};

use crate::options::KeyPrefix;

/// What clusters find slots with.
const CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// A number of partitions that share a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shard(pub(crate) u16);

/// The keys of one deployment.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: KeyPrefix,
    /// What the keys of each shard begin with.
    tags: Vec<Vec<u8>>,
}

impl Layout {
    pub(crate) fn new(prefix: KeyPrefix, shards: u16) -> Self {
        let shards = shards.max(1);
        Self { tags: (0..shards).map(|number| tag(&prefix, number, shards)).collect(), prefix }
    }

    /// Where it is noted how a deployment is laid out.
    pub(crate) fn deployment(prefix: &KeyPrefix) -> String {
        format!("{{{}}}deployment", prefix.as_str())
    }

    /// Where processes tell each other what happened.
    pub(crate) fn channel(&self) -> String {
        format!("{{{}}}news", self.prefix.as_str())
    }

    /// Where the signs of a queue are: all in one slot, so that those of many are read at once.
    pub(crate) fn signs(&self, index: &Index) -> Vec<u8> {
        [format!("{{{}}}s", self.prefix.as_str()).as_bytes(), &encode_index(index)].concat()
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..u16::try_from(self.tags.len()).unwrap_or(u16::MAX)).map(Shard)
    }

    pub(crate) const fn count(&self) -> usize {
        self.tags.len()
    }

    /// The shard of a partition. What is rare shares one.
    pub(crate) fn shard_of(&self, partition: Partition) -> Shard {
        match partition.family() {
            PartitionFamily::Global => Shard(0),
            _ => Shard(partition.index() % u16::try_from(self.tags.len()).unwrap_or(1)),
        }
    }

    /// The shards that an index stands in.
    pub(crate) fn shards_of(&self, index: &Index) -> Vec<Shard> {
        match home(index) {
            Some(home) => vec![self.shard_of(home)],
            None => self.shards().collect(),
        }
    }

    fn key(&self, shard: Shard, kind: u8, rest: &[u8]) -> Vec<u8> {
        let tag = self.tag(shard);
        let mut key = Vec::with_capacity(tag.len() + 1 + rest.len());
        key.extend_from_slice(tag);
        key.push(kind);
        key.extend_from_slice(rest);
        key
    }

    fn tag(&self, shard: Shard) -> &[u8] {
        &self.tags[usize::from(shard.0) % self.tags.len()]
    }

    /// The slot of a cluster that a shard lies in.
    pub(crate) fn slot(&self, shard: Shard) -> u16 {
        slot_of(self.tag(shard))
    }

    /// What the keys of a shard's records begin with.
    pub(crate) fn records(&self, shard: Shard) -> Vec<u8> {
        self.key(shard, b'r', &[])
    }

    /// What the keys of a shard's lists begin with.
    pub(crate) fn lists(&self, shard: Shard) -> Vec<u8> {
        self.key(shard, b'i', &[])
    }

    /// The key of a record.
    pub(crate) fn record(&self, key: &Key) -> Vec<u8> {
        self.key(self.shard_of(key.partition), b'r', &encode_key(key))
    }

    /// The key of an index.
    pub(crate) fn list(&self, shard: Shard, index: &Index) -> Vec<u8> {
        self.key(shard, b'i', &encode_index(index))
    }

    /// The number of the last event.
    pub(crate) fn event_number(&self, shard: Shard) -> Vec<u8> {
        self.key(shard, b'n', &[])
    }

    /// The events.
    pub(crate) fn event_log(&self, shard: Shard) -> Vec<u8> {
        self.key(shard, b'e', &[])
    }

    /// The number of the last event that was dropped.
    pub(crate) fn events_dropped(&self, shard: Shard) -> Vec<u8> {
        self.key(shard, b't', &[])
    }

    /// Where the latest commit of a sender is noted.
    pub(crate) fn sender(&self, shard: Shard, sender: &[u8]) -> Vec<u8> {
        self.key(shard, b'c', sender)
    }
}

/// What the keys of a shard begin with. Clusters deal slots in stretches, so shards lie at even distances: the first tag is taken that is well
/// within the shard's stretch.
fn tag(prefix: &KeyPrefix, number: u16, shards: u16) -> Vec<u8> {
    let place = |quarters: u32| (u32::from(number) * 4 + quarters) * u32::from(SLOTS) / (u32::from(shards) * 4);
    let stretch = place(1)..=place(3);
    let tags = (0_u32..).map(|try_| format!("{{{}:{number}:{try_}}}", prefix.as_str()).into_bytes());
    let is_within = |tag: &Vec<u8>| shards == 1 || stretch.contains(&u32::from(slot_of(tag)));
    tags.into_iter().find(is_within).unwrap_or_default()
}

/// The slot of a cluster that a key lies in. All our keys begin with a tag in braces, and only that counts.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.strip_prefix(b"{").and_then(|rest| rest.split(|byte| *byte == b'}').next());
    CRC16.checksum(tag.unwrap_or(key)) % SLOTS
}

/// The partition that all records of an index live in, if it is one.
fn home(index: &Index) -> Option<Partition> {
    match index {
        Index::EligibleIn(home, _)
        | Index::ExecutionsIn(home)
        | Index::SuspendedIn(home)
        | Index::TerminalIn(home, _)
        | Index::FlowsIn(home)
        | Index::BudgetsIn(home)
        | Index::QuotasIn(home) => Some(*home),
        Index::ClassesOfLane(_) | Index::Lanes => Some(Partition::GLOBAL),
        owned => owned.owner().map(|owner| owner.partition),
    }
}

/// The key under which a record is stored: ownership is a part of its execution.
pub(crate) fn stored_key(key: &Key) -> Key {
    match key.name {
        Name::Fence(id) => Key::execution(id),
        _ => key.clone(),
    }
}

/// The records that come along with executions that are listed, by the last byte of their names: what whoever takes one will ask for.
pub(crate) const BESIDE: [u8; 3] = [2, 6, 9];

/// Their keys.
pub(crate) fn beside(id: ExecutionId) -> [Key; BESIDE.len()] {
    [Key::definition(id), Key::execution_tags(id), Key::grant(id)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_comes_along_with_an_execution_has_a_name_that_differs_in_the_last_byte() {
        let id = ExecutionId::new(7, Uuid::from_u128(9));
        let execution = encode_key(&Key::execution(id));
        for (key, last) in beside(id).iter().zip(BESIDE) {
            let mut name = execution.clone();
            name.pop();
            name.push(last);
            assert_eq!(encode_key(key), name);
        }
    }

    #[test]
    fn partitions_are_dealt_to_all_shards() {
        let layout = Layout::new(KeyPrefix::default(), 5);
        let shards: BTreeSet<Shard> = (0..256).map(|index| layout.shard_of(Partition::flow(index))).collect();
        assert_eq!(shards, layout.shards().collect());
        assert_eq!(layout.shard_of(Partition::GLOBAL), Shard(0));
    }

    #[test]
    fn all_keys_of_a_partition_carry_the_tag_of_its_shard() {
        let layout = Layout::new(KeyPrefix::default(), 4);
        let id = ExecutionId::new(6, Uuid::from_u128(9));
        let record = layout.record(&Key::execution(id));
        let tag = layout.tag(Shard(2));
        assert!(record.starts_with(&[tag, b"r"].concat()), "{record:?}");
        let list = layout.list(layout.shard_of(id.partition()), &Index::ExecutionsIn(id.partition()));
        assert!(list.starts_with(&[tag, b"i"].concat()), "{list:?}");
    }

    #[test]
    fn primaries_get_as_many_shards_when_slots_are_dealt_evenly() {
        let layout = Layout::new(KeyPrefix::default(), 24);
        for primaries in [1_u16, 2, 3, 4, 6, 8, 12] {
            let mut shards = vec![0; usize::from(primaries)];
            for shard in layout.shards() {
                let owner = u32::from(layout.slot(shard)) * u32::from(primaries) / u32::from(SLOTS);
                shards[owner as usize] += 1;
            }
            assert_eq!(shards, vec![24 / primaries; usize::from(primaries)]);
        }
    }
}
