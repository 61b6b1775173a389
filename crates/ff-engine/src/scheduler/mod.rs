//! Finding work for workers: queues, admission, parking.

pub(crate) mod admission;
pub(crate) mod slots;
