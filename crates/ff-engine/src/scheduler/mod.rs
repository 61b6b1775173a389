//! Finding work for workers: queues, admission, grants, parking.
//!
//! `classes` reads what concerns a worker, `queue` finds candidates, `admission` asks budgets and quotas (`slots` is what a quota keeps), `grants` reserves, `ownership` takes,
//! `parking` holds back what `coverage` says that nobody can do, and `hunt` is the one pipeline that puts them in order for every claim.
//! `sweep` finds out which classes nobody needs any more, and `turnstile` lets one of many who wait for the same work hunt at a time.

pub(crate) mod admission;
mod classes;
pub(crate) mod coverage;
pub(crate) mod dealing;
pub(crate) mod grants;
pub(crate) mod hunt;
pub(crate) mod ownership;
pub(crate) mod parking;
pub(crate) mod queue;
mod shortcut;
pub(crate) mod slots;
pub(crate) mod sweep;
pub(crate) mod turnstile;
