//! Queues written by hand: what a store can do when nothing but the queue is asked of it.

pub mod postgres;
pub mod sqlite;
pub mod valkey;

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;

use crate::settings::CALLERS;
use crate::work::Measured;

/// How many calls are under way, and how they share transactions.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// Callers, each with one call under way.
    pub calls: usize,
    /// Most calls of one transaction.
    pub group_max: usize,
}

/// What the lifecycle of one number of callers is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Its word in the JSON object, as in `ratio_single`.
    pub key: &'static str,
    /// What the table calls the bare queue.
    pub name: &'static str,
    /// How the bare queue is driven.
    pub in_flight: InFlight,
}

/// A bare queue on a store.
#[async_trait]
pub trait Yardstick: Send + Sync {
    /// One for each number of callers.
    fn comparisons(&self) -> [Comparison; CALLERS.len()];

    /// Insert, pop by priority, finish, in a closed loop on an empty queue; counts lifecycles. The latency of a call is
    /// that of its transaction.
    async fn queue(&self, in_flight: InFlight, warm_up: Duration, measured: Duration) -> Result<Measured>;

    /// Transactions of one row, one after another.
    async fn commit(&self, warm_up: Duration, measured: Duration) -> Result<Measured>;

    /// So many transactions of one row, with a rest before each in which the store and whoever asks it grow cold.
    async fn rested_commits(&self, count: usize, rest: Duration) -> Result<Measured>;
}
