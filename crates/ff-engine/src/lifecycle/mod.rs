//! What several operations have in common: taking ownership, giving it up, ending, closing suspensions, advancing the graph.

mod ending;
pub(crate) mod graph;
mod ownership;
mod subject;
mod suspension;

pub(crate) use ending::{Ending, end, end_attempt, finish};
pub(crate) use ownership::{
    Handover, fence_check, fenced, hand_over, mark_expired, parked, released, start_attempt, stored_ownership,
};
pub(crate) use subject::Subject;
pub(crate) use suspension::{
    BOUND_WAITPOINTS_MAX, PENDING_WAITPOINTS_MAX, Resume, close_all_waitpoints, close_suspension, resume,
};
