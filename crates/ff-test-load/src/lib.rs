//! Load for tests with several processes and with faults, and what must hold after it, on a store of any kind.
//!
//! [`mixed`] is what processes do side by side, [`journal`] what a process does that may lose its store or its life at any moment. [`drain`]
//! brings everything to its end, [`owners`] and [`feed`] judge what came of it.

pub mod drain;
pub mod feed;
pub mod journal;
pub mod mixed;
pub mod owners;
pub mod seal;
