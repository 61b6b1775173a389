//! Seeded simulation of FlowFabric: processes on one troubled store, virtual time, invariants after every commit.
//!
//! [`run`] plays the history of one seed in memory, [`run_on`] on a store of any kind, [`compare`] on two of them; [`check_dump`]
//! judges what a store holds. [`Invariant`] lists what must hold; `ff-sim` is the command around it.

mod actors;
mod call;
mod checker;
pub mod cli;
mod compare;
mod demo;
mod deployment;
mod dump;
mod history;
mod invariants;
mod memory;
mod rng;
mod run;
mod settle;
mod stored;
mod transcript;
mod trouble;
mod troubled_store;
mod world;

pub use compare::{Agreement, Difference, compare};
pub use dump::{check_dump, check_dump_at_rest};
pub use history::Tally;
pub use invariants::{Class, Invariant, Violation};
pub use run::{Plan, Report, run, run_on};
