//! The behaviour of every operation as tests, written once and run on every store.
//!
//! A store's crate calls [`run`] with its [`Harness`]; [`coverage`] tells whether the suite has seen every outcome it should.

// A suite reports by panicking, like any test.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod case;
pub mod coverage;
pub mod engines;
mod expect;
pub mod harness;
pub mod memory;
mod patience;
mod recorder;
mod stage;
pub mod store_contract;
mod world;

mod attempts;
mod budgets;
mod claims;
mod connection;
mod dependencies;
mod flows;
mod hostile;
mod ingress;
mod inspection;
mod leases;
mod maintenance;
mod quotas;
mod signals;
mod streams;
mod subscriptions;
mod suspension;
mod workers;

pub use case::{run, run_trials, trials};
pub use harness::{Control, Damage, Harness, Instance};
pub use world::World;

pub(crate) use case::{Case, cases};

fn all_cases() -> Vec<Case> {
    [
        attempts::cases(),
        budgets::cases(),
        claims::cases(),
        connection::cases(),
        dependencies::cases(),
        flows::cases(),
        hostile::cases(),
        ingress::cases(),
        inspection::cases(),
        leases::cases(),
        maintenance::cases(),
        quotas::cases(),
        signals::cases(),
        streams::cases(),
        subscriptions::cases(),
        suspension::cases(),
        workers::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
