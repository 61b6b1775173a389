//! Looking at everything, and breaking things on purpose: for checkers and tests.

use ff_core::Result;
use ff_engine::codec::decode_key;
use ff_engine::event::Event;
use ff_engine::key::Key;
use ff_engine::records::Record;
use ff_engine::store::{Inspect, Store as _};

use crate::address::stored_key;
use crate::error::corrupt;
use crate::indexes::member;
use crate::maintenance::Scan;
use crate::store::ValkeyStore;
use crate::tables::record::{new_version, value};
use crate::tables::{Look, event};

impl Inspect for ValkeyStore {
    async fn records(&self) -> Result<Vec<Record>> {
        let mut out = Vec::new();
        for shard in self.shared.layout.shards() {
            let prefix = self.shared.layout.records(shard);
            let mut scan = Scan::new(&self.shared, shard, &prefix);
            while let Some(found) = scan.next().await? {
                let keys: Option<Vec<Key>> = found.iter().map(|key| decode_key(&key[prefix.len()..])).collect();
                let keys = keys.ok_or_else(|| corrupt("a key cannot be read"))?;
                let seen = self.look(shard, &Look { keys, ..Look::default() }).await?;
                for stored in seen.records.into_iter().flatten() {
                    out.push(stored.record?);
                }
            }
        }
        Ok(out)
    }

    async fn event_log(&self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for shard in self.shared.layout.shards() {
            let command = event::after(&self.shared.layout, shard, 0, 1 << 30);
            let (_, log) = event::read(self.shared.link.ask(&command).await?, 0)?;
            events.extend(log.into_iter().map(|(_, event)| event));
        }
        Ok(events)
    }
}

impl ValkeyStore {
    /// Makes a record unreadable, as a damaged disk would.
    ///
    /// # Errors
    /// Whatever the server answers.
    pub async fn damage(&self, key: Key) -> Result<()> {
        let key = stored_key(&key);
        let mut command = redis::cmd("SET");
        let version = new_version();
        command.arg(self.shared.layout.record(&key)).arg(value(&key, version, version, &[0xc1])).arg("XX");
        self.shared.memory.forget(&key);
        self.shared.link.ask(&command).await.map(drop)
    }

    /// Removes the index entries of a record behind its back, as a lost write would.
    ///
    /// # Errors
    /// Whatever the server answers.
    pub async fn lose_index_entries(&self, key: Key) -> Result<()> {
        let layout = &self.shared.layout;
        let found = self.read(std::slice::from_ref(&key)).await?;
        let Some(record) = found.into_iter().flatten().next() else { return Ok(()) };
        for entry in record.entries() {
            let mut command = redis::cmd("ZREM");
            command.arg(layout.list(layout.shard_of(key.partition), &entry.index)).arg(member(&entry, &key));
            self.shared.link.ask(&command).await?;
        }
        Ok(())
    }
}
