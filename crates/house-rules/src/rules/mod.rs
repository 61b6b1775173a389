//! One file per family of rules; every rule is a pure function that returns what it found.

pub mod commands;
pub mod manifests;
pub mod paths;
pub mod siblings;
pub mod sizes;
pub mod statements;
pub mod words;
