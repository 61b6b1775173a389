//! Flows: membership, submission, cancellation, summaries.

mod cancelling;
pub(crate) mod kit;
mod membership;
mod parents;
mod reads;
mod spawning;
mod submission;

pub(crate) fn cases() -> Vec<crate::Case> {
    let spawned = [spawning::cases(), parents::cases()];
    let rest = [membership::cases(), submission::cases(), cancelling::cases(), reads::cases()];
    spawned.into_iter().chain(rest).flatten().collect()
}
