//! Load for tests with several processes and with faults, and what must hold after it, on a store of any kind.
//!
//! [`mixed`] is what processes do side by side, which [`processes`] lets them do; [`journal`] what a process does that may lose its store or its
//! life at any moment, which [`faults`] sees to. [`drain`] brings everything to its end, [`owners`] and [`feed`] judge what came of it.

pub mod drain;
pub mod faults;
pub mod feed;
pub mod journal;
pub mod mixed;
pub mod owners;
pub mod processes;
pub mod seal;
pub mod site;
