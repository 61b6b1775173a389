//! FlowFabric on PostgreSQL: one store for many processes.
//!
//! Needs Postgres 13 or later, and sessions of its own: through a pooler in session mode it works, in transaction mode it does not.

mod connection;
mod error;
mod options;
mod schema;
mod tls;

pub use connection::{Client, Listener, Messages, Pool};
pub use options::{PostgresOptions, SchemaName};
pub use schema::{MIN_COMPATIBLE, SCHEMA_VERSION, check, prepare};
pub use tls::{Roots, Tls};
