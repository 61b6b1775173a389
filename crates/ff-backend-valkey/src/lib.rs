//! FlowFabric on Valkey 7.2 or later and on Redis 7.0 or later: one server, or a cluster that the work spreads over.
//!
//! Records, lists and events of a [shard](ValkeyOptions::shards) lie in one slot of the cluster, and each commit is one call of a function on
//! the server: it is there whole or not at all.

mod address;
mod cluster;
mod connection;
mod error;
mod indexes;
mod inspect;
mod lists;
mod maintenance;
mod news;
mod options;
mod schema;
mod signposts;
mod store;
mod tables;
mod tls;
mod writer;

pub use options::{KeyPrefix, ValkeyOptions};
pub use redis;
pub use schema::functions;
pub use store::ValkeyStore;

/// The engine on Valkey or Redis.
pub type ValkeyBackend = ff_engine::Engine<ValkeyStore>;
