//! What each operation does; one file per facet of the contract.

pub(crate) mod attempts;
pub(crate) mod budgets;
mod claims;
mod connection;
pub(crate) mod dependencies;
pub(crate) mod flows;
mod ingress;
mod inspection;
pub(crate) mod leases;
mod maintenance;
mod quotas;
mod signals;
mod streams;
mod subscriptions;
mod suspension;
pub(crate) mod workers;
