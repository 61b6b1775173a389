//! Workers and clients of FlowFabric: handlers as ordinary async functions, over any backend.
//!
//! A [`Worker`] takes work of the kinds it has handlers for, keeps the lease while a handler runs, and reports what came of it. A [`Client`]
//! submits work, waits for results, signals, approves, cancels and reads streams. Both need nothing but an
//! [`EngineBackend`](ff_core::backend::EngineBackend), so they work the same in process and over a network.

mod client;
mod context;
mod error;
mod fate;
mod handler;
pub mod layers;
mod task;
mod worker;

pub use client::{Budget, Client, DEFAULT_NAMESPACE, Ending, FlowBuilder, FlowRun, FrameFeed, FramePlace, Run};
pub use context::{Answer, Callback, Child, ChildFailed, Context, Frames, Wait};
pub use error::{Error, Result, TaskError, TaskResult};
pub use fate::Interruption;
pub use task::{DEFAULT_LANE, Task};
pub use worker::{RunningWorker, Worker, WorkerBuilder};
