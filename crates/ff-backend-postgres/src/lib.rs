//! FlowFabric on PostgreSQL: one store for many processes.
//!
//! Needs Postgres 13 or later, and sessions of its own: through a pooler in session mode it works, in transaction mode it does not.

mod address;
mod client;
mod column;
mod connection;
mod error;
mod indexes;
mod inspect;
mod intake;
mod maintenance;
mod news;
mod options;
mod schema;
mod session;
mod short;
mod standing;
mod store;
mod tables;
mod tls;
mod value;
mod view;
mod writer;
mod young;

pub use client::Client;
pub use connection::{Listener, Messages, Pool};
pub use deadpool_postgres;
pub use intake::{CreateIn, OwnTransaction};
pub use options::{PostgresOptions, SchemaName};
pub use schema::{MIN_COMPATIBLE, SCHEMA_VERSION, check, prepare};
pub use store::PostgresStore;
pub use tls::{Roots, Tls};
pub use tokio_postgres;

/// The engine on Postgres.
pub type PostgresBackend = ff_engine::Engine<PostgresStore>;
