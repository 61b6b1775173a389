//! Workers and clients of FlowFabric: handlers as ordinary async functions, over any backend.

pub mod layers;
