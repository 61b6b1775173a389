//! Submission, re-ranking, replay and lanes.

mod create;
mod deduplication;
mod lanes;
mod priority;
mod replay;
mod replay_flow;

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    [create::cases(), deduplication::cases(), lanes::cases(), priority::cases(), replay::cases(), replay_flow::cases()]
        .into_iter()
        .flatten()
        .collect()
}
