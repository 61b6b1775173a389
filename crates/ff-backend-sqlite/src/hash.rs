//! Maps by keys that come from this process.

/// A fast hash is safe enough; it is seeded all the same.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// The same for sets.
pub(crate) type HashSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;
