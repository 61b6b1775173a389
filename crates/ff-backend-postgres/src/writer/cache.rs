//! Rows that were read or written lately. What is here may be old: whoever decides on it has the commit make sure that it is not.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_engine::hash::{HashMap, Hasher};
use ff_engine::key::Name;

use crate::address::{Address, Stored};

/// Locks that users share.
const SHARDS: usize = 16;

/// Rows of one generation of one shard. What is not asked for during a whole generation is forgotten.
const GENERATION: usize = 512;

/// Bytes of a record that is worth remembering.
const BYTES_MAX: usize = 4_096;

/// What a row holds; none for one that is not there.
pub(crate) type Row = Option<Arc<Stored>>;

#[derive(Debug, Default)]
struct Shard {
    young: HashMap<Address, Row>,
    old: HashMap<Address, Row>,
}

impl Shard {
    /// What the older generation has for it is of no account from now on.
    fn put(&mut self, address: Address, stored: Row) {
        self.young.insert(address, stored);
        if self.young.len() >= GENERATION {
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
    }

    fn get(&mut self, address: &Address) -> Option<Row> {
        if let Some(stored) = self.young.get(address) {
            return Some(stored.clone());
        }
        let (address, stored) = self.old.remove_entry(address)?;
        self.put(address, stored.clone());
        Some(stored)
    }

    fn forget(&mut self, address: &Address) {
        self.young.remove(address);
        self.old.remove(address);
    }
}

/// Rows by where they are.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    hasher: Hasher,
}

impl Default for Cache {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: Hasher::default() }
    }
}

impl Cache {
    fn shard(&self, address: &Address) -> MutexGuard<'_, Shard> {
        let place = self.hasher.hash_one(address) % SHARDS as u64;
        self.shards[usize::try_from(place).unwrap_or(0)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, address: &Address) -> Option<Row> {
        self.shard(address).get(address)
    }

    /// Remembers a row, or that it is not there; forgets what is not worth keeping.
    pub(crate) fn put(&self, address: Address, stored: Row) {
        let is_worth_keeping = match &stored {
            Some(stored) => stored.body.len() <= BYTES_MAX && is_worth_keeping(&address),
            // What an execution lacks is hardly asked for twice.
            None => address.execution().is_none(),
        };
        let mut shard = self.shard(&address);
        if is_worth_keeping {
            shard.put(address, stored);
        } else {
            shard.forget(&address);
        }
    }

    pub(crate) fn forget(&self, address: &Address) {
        self.shard(address).forget(address);
    }
}

/// Whether a row is likely to be asked for again, and small.
const fn is_worth_keeping(address: &Address) -> bool {
    match address {
        Address::Execution(_) => true,
        Address::Record(key) => !matches!(
            key.name,
            Name::Payload(_) | Name::Outcome(_) | Name::Frame(..) | Name::Summary(..) | Name::Step(..)
        ),
    }
}
