//! An execution stays with the worker that owns it, and is taken back when the worker is gone.

mod expiry;
mod listing;
mod lost;
mod reclaim;
mod renew;
mod revoke;
mod timeouts;

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    let groups = [
        expiry::cases(),
        listing::cases(),
        lost::cases(),
        reclaim::cases(),
        renew::cases(),
        revoke::cases(),
        timeouts::cases(),
    ];
    groups.into_iter().flatten().collect()
}
