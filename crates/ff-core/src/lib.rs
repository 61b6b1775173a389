//! Words and rules of FlowFabric: no I/O, no runtime, no clock.
//!
//! Start with [`backend`] for what an engine promises, [`state`] for what an execution can be, and [`rules`] for the
//! decisions every layer shares.

pub mod backend;
pub mod blob;
pub mod capability;
pub mod cursor;
pub mod error;
pub mod fault;
pub mod handle;
pub mod ids;
pub mod kinds;
pub mod partition;
pub mod policy;
pub mod rules;
pub mod state;
pub mod tag;
#[cfg(test)]
pub(crate) mod testing;
pub mod time;
pub mod token;
pub mod trace;
mod wire;
pub mod words;

pub use blob::Blob;
pub use error::{EngineError, Result};
pub use time::TimestampMs;
