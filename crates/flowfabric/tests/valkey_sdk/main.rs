//! The same on Valkey as on SQLite: workers and clients on an embedded engine, as their users see them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may fail, and tells what it found")]

#[path = "../sdk/clients.rs"]
mod clients;
#[path = "../sdk/drain.rs"]
mod drain;
#[path = "../sdk/examples.rs"]
mod examples;
#[path = "../sdk/routing.rs"]
mod routing;
mod store;
#[path = "../sdk/support.rs"]
mod support;
#[path = "../sdk/waiting.rs"]
mod waiting;
#[path = "../sdk/worker_death.rs"]
mod worker_death;
#[path = "../sdk/workers.rs"]
mod workers;
