//! A process that may lose its store or its life at any moment: what its callers say, what must be stored then, and whether it is.

pub mod caller;
pub mod line;
pub mod model;
pub mod verify;
