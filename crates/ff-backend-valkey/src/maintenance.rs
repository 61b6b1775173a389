//! Comparing the entries of lists with what records declare, and repairing differences.
//!
//! The server has no order of keys, so everything it holds has to be gone through.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::Result;
use ff_core::partition::Partition;
use ff_engine::codec::decode_key;
use ff_engine::key::Key;

use crate::address::{Layout, Shard};
use crate::indexes::{member, place};
use crate::schema::function;
use crate::store::ValkeyStore;
use crate::tables::record::Stored;
use crate::tables::{Look, array, bytes, list, number};
use crate::writer::Shared;

/// Keys that the server goes through at a time.
const KEYS_AT_ONCE: usize = 1_000;

/// All keys of a shard that begin alike.
pub(crate) struct Scan<'a> {
    shared: &'a Shared,
    shard: Shard,
    pattern: Vec<u8>,
    /// Where to go on; none when all is seen.
    cursor: Option<Vec<u8>>,
    /// A key may be shown more than once.
    seen: BTreeSet<Vec<u8>>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(shared: &'a Shared, shard: Shard, prefix: &[u8]) -> Self {
        // No part of a prefix means anything else in a pattern.
        let pattern = [prefix, b"*"].concat();
        Self { shared, shard, pattern, cursor: Some(b"0".to_vec()), seen: BTreeSet::new() }
    }

    /// The next keys, perhaps none; nothing at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>> {
        self.next_of(|_| true).await
    }

    /// The same of those that are wanted; the others are not even remembered.
    async fn next_of(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(KEYS_AT_ONCE);
        let slot = self.shared.layout.slot(self.shard);
        let [cursor, keys] = array(self.shared.link.ask_at(slot, &command).await?)?;
        let cursor = bytes(cursor)?;
        self.cursor = (cursor != b"0").then_some(cursor);
        let keys: Vec<Vec<u8>> = list(keys)?.into_iter().map(bytes).collect::<Result<_>>()?;
        Ok(Some(keys.into_iter().filter(|key| is_wanted(key) && self.seen.insert(key.clone())).collect()))
    }
}

/// Goes through the records of a partition, and then through all lists of its shard.
pub(crate) async fn reindex(store: &ValkeyStore, partition: Partition) -> Result<(u32, u32)> {
    let (looked, added) = restore(store, partition).await?;
    let shard = store.shared.layout.shard_of(partition);
    let removed = remove_undeclared(store, shard, Some(partition)).await?;
    Ok((looked, added.saturating_add(removed)))
}

/// The same in a round over all partitions. Lists have no order by partition, so all of them are gone through once per round, for everybody.
pub(crate) async fn reindex_in_round(store: &ValkeyStore, partition: Partition, is_first: bool) -> Result<(u32, u32)> {
    let (looked, mut repaired) = restore(store, partition).await?;
    if is_first {
        for shard in store.shared.layout.shards() {
            repaired += remove_undeclared(store, shard, None).await?;
        }
    }
    Ok((looked, repaired))
}

/// Goes through the records of a partition; says how many there are, and how many entries they lacked.
async fn restore(store: &ValkeyStore, partition: Partition) -> Result<(u32, u32)> {
    let layout = &store.shared.layout;
    let shard = layout.shard_of(partition);
    let (mut looked, mut repaired) = (0, 0);
    let prefix = layout.records(shard);
    let key_of = |found: &[u8]| decode_key(&found[prefix.len()..]).filter(|key| key.partition == partition);
    let mut records = Scan::new(&store.shared, shard, &prefix);
    while let Some(found) = records.next_of(|found| key_of(found).is_some()).await? {
        let keys: Vec<Key> = found.iter().filter_map(|found| key_of(found)).collect();
        looked += u32::try_from(keys.len()).unwrap_or(u32::MAX);
        repaired += add_missing(store, shard, keys).await?;
    }
    Ok((looked, repaired))
}

/// Takes out of all lists of a shard what no record declares, of one partition or of all.
async fn remove_undeclared(store: &ValkeyStore, shard: Shard, of: Option<Partition>) -> Result<u32> {
    let mut lists = Scan::new(&store.shared, shard, &store.shared.layout.lists(shard));
    let mut repaired = 0;
    while let Some(found) = lists.next().await? {
        for key in found {
            repaired += remove_from(store, shard, of, &key).await?;
        }
    }
    Ok(repaired)
}

/// A member of a list, the record that it stands for, and the version that the record had.
struct Place {
    member: Vec<u8>,
    record: Vec<u8>,
    version: Vec<u8>,
}

/// The places that records declare, by list.
fn declared(layout: &Layout, shard: Shard, records: &[(Key, Option<Stored>)]) -> BTreeMap<Vec<u8>, Vec<Place>> {
    let mut out: BTreeMap<Vec<u8>, Vec<Place>> = BTreeMap::new();
    for (key, stored) in records {
        let version = version(stored.as_ref());
        for entry in stored.iter().flat_map(|stored| stored.entries().iter()) {
            let place = Place { member: member(entry, key), record: layout.record(key), version: version.clone() };
            out.entry(layout.list(shard, &entry.index)).or_default().push(place);
        }
    }
    out
}

/// As the server compares it; nothing for a record that is not there.
fn version(stored: Option<&Stored>) -> Vec<u8> {
    stored.map(|stored| stored.version.to_be_bytes().to_vec()).unwrap_or_default()
}

async fn look(store: &ValkeyStore, shard: Shard, keys: Vec<Key>) -> Result<Vec<(Key, Option<Stored>)>> {
    let look = Look { keys, ..Look::default() };
    let seen = store.look(shard, &look).await?;
    Ok(look.keys.into_iter().zip(seen.records).collect())
}

/// Enters records where they say that they stand.
async fn add_missing(store: &ValkeyStore, shard: Shard, keys: Vec<Key>) -> Result<u32> {
    if keys.is_empty() {
        return Ok(0);
    }
    let records = look(store, shard, keys).await?;
    let mut repaired = 0;
    for (list, places) in declared(&store.shared.layout, shard, &records) {
        repaired += repair(store, "ZADD", &list, &places).await?;
    }
    Ok(repaired)
}

/// Takes out of a list what no record declares, of one partition or of all.
async fn remove_from(store: &ValkeyStore, shard: Shard, of: Option<Partition>, list_key: &[u8]) -> Result<u32> {
    let (mut cursor, mut repaired) = (b"0".to_vec(), 0);
    loop {
        let mut command = redis::cmd("ZSCAN");
        command.arg(list_key).arg(&cursor).arg("COUNT").arg(KEYS_AT_ONCE);
        let [next, found] = array(store.shared.link.ask(&command).await?)?;
        let members: Vec<Vec<u8>> = list(found)?.into_iter().step_by(2).map(bytes).collect::<Result<_>>()?;
        let is_of = |key: Key| of.is_none_or(|partition| key.partition == partition);
        let of_partition = |member: &Vec<u8>| place(member).is_none_or(|(_, key)| is_of(key));
        let members: Vec<Vec<u8>> = members.into_iter().filter(of_partition).collect();
        let ghosts = ghosts(store, shard, list_key, members).await?;
        repaired += repair(store, "ZREM", list_key, &ghosts).await?;
        cursor = bytes(next)?;
        if cursor == b"0" {
            return Ok(repaired);
        }
    }
}

/// The members of a list that no record declares. What cannot be read may declare them.
async fn ghosts(store: &ValkeyStore, shard: Shard, list_key: &[u8], members: Vec<Vec<u8>>) -> Result<Vec<Place>> {
    let layout = &store.shared.layout;
    let keys: BTreeSet<Key> = members.iter().filter_map(|member| place(member)).map(|(_, key)| key).collect();
    let records = look(store, shard, keys.into_iter().collect()).await?;
    let known = declared(layout, shard, &records).remove(list_key).unwrap_or_default();
    let known: BTreeSet<Vec<u8>> = known.into_iter().map(|place| place.member).collect();
    let records: BTreeMap<Key, Option<Stored>> = records.into_iter().collect();
    let mut ghosts = Vec::new();
    for member in members.into_iter().filter(|member| !known.contains(member)) {
        let Some((_, key)) = place(&member) else {
            // It stands for nothing; and nothing has the key that only begins like those of records.
            ghosts.push(Place { member, record: layout.records(shard), version: Vec::new() });
            continue;
        };
        let stored = records.get(&key).and_then(Option::as_ref);
        if stored.is_none_or(|stored| stored.record.is_ok()) {
            ghosts.push(Place { member, record: layout.record(&key), version: version(stored) });
        }
    }
    Ok(ghosts)
}

/// Adds members to a list or takes them out, each unless its record has changed since: then its own commit has seen to it.
async fn repair(store: &ValkeyStore, how: &str, list_key: &[u8], places: &[Place]) -> Result<u32> {
    let mut repaired = 0;
    for places in places.chunks(KEYS_AT_ONCE) {
        let mut command = redis::cmd("FCALL");
        command.arg(function("repair")).arg(places.len() + 1).arg(list_key);
        for place in places {
            command.arg(&place.record);
        }
        command.arg(how);
        for place in places {
            command.arg(&place.version).arg(&place.member);
        }
        repaired += u32::try_from(number(&store.shared.link.ask(&command).await?)?).unwrap_or(0);
    }
    Ok(repaired)
}
