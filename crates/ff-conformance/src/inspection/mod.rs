//! Reads, lists, tags, search, and the answer to "why does nothing happen".

mod explain;
mod lists;
mod outcomes;
mod reads;
mod search;
mod tags;

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    [reads::cases(), outcomes::cases(), tags::cases(), lists::cases(), search::cases(), explain::cases()]
        .into_iter()
        .flatten()
        .collect()
}
