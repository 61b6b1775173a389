//! Workers and clients on an embedded engine, as their users see them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may fail, and tells what it found")]

mod clients;
mod drain;
mod routing;
mod store;
mod support;
mod waiting;
mod worker_death;
mod workers;
