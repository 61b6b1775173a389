//! FlowFabric on SQLite: one file, nothing to install, full durability.
//!
//! One thread writes. It takes the operations that wait and those that come meanwhile, runs them back to back in one transaction, commits,
//! and only then answers each of them: one flush to disk for many callers, and none for nothing. Readers run beside it on connections
//! of their own. The newest executions live in a journal and come to their table later, many at a time.
//!
//! With [`Synchronous::Full`], the default, an answer is given after the operating system reports the commit as written to the disk. With
//! [`Synchronous::Normal`] a commit survives the death of the process, but the last ones may be lost when the machine loses power;
//! the file stays intact in either case.

mod connection;
mod error;
mod indexes;
mod inspect;
mod maintenance;
mod options;
mod readers;
mod schema;
mod store;
mod tables;
mod watch;
mod writer;
mod young;

pub use connection::settings;
pub use maintenance::CheckReport;
pub use options::{Location, SqliteOptions, Synchronous};
pub use schema::{MIN_COMPATIBLE, SCHEMA_VERSION};
pub use store::SqliteStore;

/// The engine on SQLite.
pub type SqliteBackend = ff_engine::Engine<SqliteStore>;
