//! Dependencies: edges, groups, and what the end of a member means to those who wait.

mod cascades;
mod children;
mod data;
mod edges;
pub(crate) mod kit;
mod lives;
mod siblings;
mod staging;

pub(crate) fn cases() -> Vec<crate::Case> {
    let edges = [edges::cases(), staging::cases(), cascades::cases(), siblings::cases(), data::cases()];
    let children = [children::cases(), lives::cases()];
    edges.into_iter().chain(children).flatten().collect()
}
