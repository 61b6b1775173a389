//! What was read or written lately, for stores that remember it.

use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hash::{HashMap, Hasher};

/// Locks that users share.
const SHARDS: usize = 16;

/// Values of one generation of one shard. What is not asked for during a whole generation is forgotten.
const GENERATION: usize = 512;

#[derive(Debug)]
struct Shard<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Eq + Hash, V: Clone> Shard<K, V> {
    /// What the older generation has for it is of no account from now on.
    fn put(&mut self, key: K, value: V) {
        self.young.insert(key, value);
        if self.young.len() >= GENERATION {
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.put(key, value.clone());
        Some(value)
    }

    fn forget(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

/// The latest values by key. They may be old: whoever decides on one has the commit make sure that it is not.
#[derive(Debug)]
pub struct Recent<K, V> {
    shards: Vec<Mutex<Shard<K, V>>>,
    hasher: Hasher,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        let shard = || Mutex::new(Shard { young: HashMap::default(), old: HashMap::default() });
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), hasher: Hasher::default() }
    }
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K, V>> {
        let place = self.hasher.hash_one(key) % SHARDS as u64;
        self.shards[usize::try_from(place).unwrap_or(0)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        self.shard(key).get(key)
    }

    /// Remembers a value in place of an earlier one.
    pub fn put(&self, key: K, value: V) {
        self.shard(&key).put(key, value);
    }

    /// Remembers nothing of a key.
    pub fn forget(&self, key: &K) {
        self.shard(key).forget(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_value_counts_and_what_nobody_asks_for_is_forgotten() {
        let recent = Recent::default();
        recent.put(0, "old");
        recent.put(0, "new");
        let many = 4 * i32::try_from(SHARDS * GENERATION).unwrap();
        for key in 1..many {
            recent.put(key, "other");
            if key % 100 == 0 {
                assert_eq!(recent.get(&0), Some("new"), "what is asked for is kept");
            }
        }
        assert_eq!(recent.get(&1), None);
        recent.forget(&0);
        assert_eq!(recent.get(&0), None);
    }
}
