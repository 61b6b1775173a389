//! What is measured.

pub mod backlog;
pub mod chain;
pub mod lifecycle;
pub mod stream;
pub mod suspend;
pub mod timers;
pub mod worker;
