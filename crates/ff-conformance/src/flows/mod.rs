//! Flows: membership, submission, cancellation, summaries.

mod cancelling;
pub(crate) mod kit;
mod membership;
mod reads;
mod submission;

pub(crate) fn cases() -> Vec<crate::Case> {
    [membership::cases(), submission::cases(), cancelling::cases(), reads::cases()].into_iter().flatten().collect()
}
