//! Pure decisions: given what is stored and what is asked, what happens. Every layer shares these and no store repeats them.

pub mod budgets;
pub mod conditions;
pub mod edge_groups;
pub mod fence;
pub mod graph;
pub mod quotas;
pub mod replay;
pub mod retention;
pub mod retry;
pub mod streams;
pub mod waiting;
