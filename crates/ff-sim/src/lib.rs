//! Seeded simulation of FlowFabric: processes on one troubled store, virtual time, invariants after every commit.
//!
//! [`run`] plays the history of one seed; [`Invariant`] lists what must hold; `ff-sim` is the command around it.

mod actors;
mod call;
mod checker;
pub mod cli;
mod demo;
mod history;
mod invariants;
mod memory;
mod rng;
mod run;
mod settle;
mod trouble;
mod world;

pub use history::Tally;
pub use invariants::{Class, Invariant, Violation};
pub use run::{Plan, Report, run};
