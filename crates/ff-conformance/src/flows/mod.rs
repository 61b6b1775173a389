//! Flows: membership, submission, cancellation, summaries.

mod cancelling;
pub(crate) mod kit;
mod membership;
mod reads;
mod spawning;
mod submission;

pub(crate) fn cases() -> Vec<crate::Case> {
    [membership::cases(), submission::cases(), spawning::cases(), cancelling::cases(), reads::cases()]
        .into_iter()
        .flatten()
        .collect()
}
