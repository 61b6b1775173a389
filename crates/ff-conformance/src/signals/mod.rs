//! Waitpoints, the signals sent to them, and the secrets that sign their tokens.

mod approvals;
mod composites;
mod delivery;
mod limits;
mod secrets;
mod tokens;
mod waitpoints;

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    [
        waitpoints::cases(),
        tokens::cases(),
        delivery::cases(),
        limits::cases(),
        composites::cases(),
        approvals::cases(),
        secrets::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
