//! Parking executions and waking them.

mod bindings;
mod fences;
pub(crate) mod fixtures;
mod listing;
mod neighbours;
mod resume;
mod resumptions;
mod suspend;
mod timeouts;
mod validation;

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    [
        suspend::cases(),
        validation::cases(),
        fences::cases(),
        bindings::cases(),
        resume::cases(),
        resumptions::cases(),
        timeouts::cases(),
        listing::cases(),
        neighbours::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
