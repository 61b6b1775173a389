//! Dependencies: edges, groups, and what the end of a member means to those who wait.

mod cascades;
mod children;
mod data;
mod edges;
pub(crate) mod kit;
mod siblings;
mod staging;

pub(crate) fn cases() -> Vec<crate::Case> {
    [edges::cases(), staging::cases(), cascades::cases(), siblings::cases(), data::cases(), children::cases()]
        .into_iter()
        .flatten()
        .collect()
}
