//! An attempt reports, ends or parks.

mod cancel;
mod complete;
mod fail;
mod fence;
pub(crate) mod owner;
mod park;
mod progress;
mod replay;
mod steps;
mod tags;

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    let groups = [
        cancel::cases(),
        complete::cases(),
        fail::cases(),
        fence::cases(),
        park::cases(),
        progress::cases(),
        replay::cases(),
        steps::cases(),
        tags::cases(),
    ];
    groups.into_iter().flatten().collect()
}
