//! What several operations have in common: taking ownership, giving it up, ending, closing suspensions, advancing the graph.

mod cancelling;
pub(crate) mod dependencies;
mod ending;
pub(crate) mod graph;
mod ownership;
mod policy;
mod subject;
mod suspension;

pub(crate) use cancelling::CancelExecution;
pub(crate) use ending::{Ending, Retry, end, finish, retry_later};
pub(crate) use ownership::{
    Handover, close_stream, fence_check, fenced, hand_over, mark_expired, park_attempt, parked, released,
    stored_ownership,
};
pub(crate) use policy::policy;
pub(crate) use subject::Subject;
pub(crate) use suspension::{
    BOUND_WAITPOINTS_MAX, PENDING_WAITPOINTS_MAX, Resume, close_all_waitpoints, close_suspension, resume,
};
