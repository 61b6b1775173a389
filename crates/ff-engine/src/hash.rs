//! Maps that are asked many times per operation. Their hash is fast and seeded at random, so nobody can choose keys that collide.

/// A map.
pub type HashMap<K, V> = std::collections::HashMap<K, V, Hasher>;

/// A set.
pub type HashSet<K> = std::collections::HashSet<K, Hasher>;

/// What such maps hash with.
pub type Hasher = foldhash::fast::RandomState;
