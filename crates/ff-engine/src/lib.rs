//! Every operation of FlowFabric, once, over a small transactional store.
//!
//! [`store`] says what a store must do, [`records`] what is stored and how it changes, `ops` what each operation does,
//! [`memory`] is the model store, and [`Engine`] puts them together. [`Timers`] run what comes due.

pub mod alarms;
pub mod clock;
pub mod codec;
mod draft;
mod engine;
pub mod entropy;
pub mod event;
pub mod hash;
pub mod index;
pub mod key;
mod lifecycle;
pub mod memory;
mod neighbourhood;
mod ops;
pub mod overlay;
pub mod queues;
pub mod recent;
pub mod records;
mod scheduler;
mod service;
pub mod store;
mod tie;
mod timers;
pub mod topics;
mod verbs;

pub use engine::{Engine, Limits, Settings};
pub use service::{LoopHealth, TimerHealth, TimerLoop, TimerOptions, Timers};
pub use timers::{DueReport, FailingItem};
