//! What is measured.

pub mod backlog;
pub mod bare;
pub mod chain;
pub mod foreign;
pub mod idle;
pub mod lifecycle;
pub mod stream;
pub mod suspend;
pub mod timers;
pub mod worker;
