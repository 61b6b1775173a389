//! What an engine promises, as sixteen facets and their sum.

pub mod attempts;
pub mod budgets;
pub mod claims;
pub mod connection;
pub mod dependencies;
pub mod flows;
pub mod ingress;
pub mod inspection;
pub mod layer;
pub mod leases;
pub mod maintenance;
pub mod quotas;
pub mod signals;
pub mod streams;
pub mod subscriptions;
pub mod suspension;
pub mod workers;

pub use attempts::Attempts;
pub use budgets::Budgets;
pub use claims::Claims;
pub use connection::Connection;
pub use dependencies::Dependencies;
pub use flows::Flows;
pub use ingress::Ingress;
pub use inspection::Inspection;
pub use leases::Leases;
pub use maintenance::Maintenance;
pub use quotas::Quotas;
pub use signals::Signals;
pub use streams::Streams;
pub use subscriptions::Subscriptions;
pub use suspension::Suspension;
pub use workers::Workers;

/// Everything servers and workers need from an engine.
pub trait EngineBackend:
    Ingress
    + Claims
    + Attempts
    + Leases
    + Suspension
    + Signals
    + Flows
    + Dependencies
    + Budgets
    + Quotas
    + Streams
    + Inspection
    + Workers
    + Subscriptions
    + Maintenance
    + Connection
    + 'static
{
}

impl<B> EngineBackend for B where
    B: Ingress
        + Claims
        + Attempts
        + Leases
        + Suspension
        + Signals
        + Flows
        + Dependencies
        + Budgets
        + Quotas
        + Streams
        + Inspection
        + Workers
        + Subscriptions
        + Maintenance
        + Connection
        + 'static
{
}
