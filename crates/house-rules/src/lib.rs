//! House rules as tests.
//!
//! [`rules`] holds one pure function per rule, from text to [`Finding`]s, with a unit test that shows it catching a
//! violation. [`repository`] reads the files, [`comments`] tells comments from code. `tests/house_rules.rs` applies
//! every rule to this repository.

pub mod comments;
mod finding;
pub mod repository;
pub mod rules;

pub use finding::Finding;
