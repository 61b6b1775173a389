//! Connections that are not only the store's: of a pool that its caller goes on using, and of a pooler in front of the server.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test reports by panicking, and its other process by printing"
)]

mod from_pool;
mod pgbouncer;
#[path = "../server/mod.rs"]
mod server;
mod work;
