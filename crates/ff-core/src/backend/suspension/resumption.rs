//! How an execution went on after a suspension.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{ResumeSignal, ResumeTrigger};
use crate::ids::AttemptIndex;
use crate::time::TimestampMs;

/// A suspension that ended in a resume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct Resumption {
    /// Which suspension of the execution, from 0; replays do not start anew.
    pub ordinal: u32,
    /// The attempt that was suspended and went on.
    pub attempt_index: AttemptIndex,
    /// The keys of the waitpoints it waited at.
    #[cfg_attr(test, proptest(strategy = "some_keys()"))]
    pub waitpoint_keys: BTreeSet<String>,
    /// What made it resume.
    pub trigger: ResumeTrigger,
    /// Whether its timeout did.
    pub timed_out: bool,
    /// The signals that satisfied the condition, in order of arrival; the timeout's own when it timed out.
    #[cfg_attr(test, proptest(strategy = "some_signals()"))]
    pub signals: Vec<ResumeSignal>,
    /// When it resumed.
    pub resumed_at: TimestampMs,
}

#[cfg(test)]
fn some_keys() -> impl proptest::strategy::Strategy<Value = BTreeSet<String>> {
    proptest::collection::btree_set("[a-z]{1,8}", 0..3)
}

#[cfg(test)]
fn some_signals() -> impl proptest::strategy::Strategy<Value = Vec<ResumeSignal>> {
    proptest::collection::vec(proptest::arbitrary::any::<ResumeSignal>(), 0..3)
}

#[cfg(test)]
mod tests {
    crate::testing::answer_round_trips!(Resumption);
}
