//! Resume conditions: which suspensions make sense, and when enough signals have arrived.

mod progress;
mod validation;

pub use progress::{ConditionProgress, MatchedSignal, Satisfier, SignalFacts};
pub use validation::{COMPOSITE_DEPTH_MAX, TIMEOUT_SKEW_MS, validate_pending_key, validate_suspend};

use crate::backend::suspension::{ResumeCondition, SignalMatcher};

/// A condition inside a condition, with its place: `<root>`, or a path like `members[0].members[1]`.
struct Node<'a> {
    path: String,
    /// How many composites there are from the root down to this one, itself included; leaves add none.
    depth: usize,
    condition: &'a ResumeCondition,
}

/// Every condition of a tree, parents before their members.
fn nodes(root: &ResumeCondition) -> Vec<Node<'_>> {
    let mut found = Vec::new();
    collect(root, ROOT.to_owned(), 0, &mut found);
    found
}

const ROOT: &str = "<root>";

fn member_path(parent: &str, index: usize) -> String {
    if parent == ROOT { format!("members[{index}]") } else { format!("{parent}.members[{index}]") }
}

fn collect<'a>(condition: &'a ResumeCondition, path: String, above: usize, found: &mut Vec<Node<'a>>) {
    match condition {
        ResumeCondition::AllOf { members } => {
            let below: Vec<_> =
                members.iter().enumerate().map(|(index, member)| (member_path(&path, index), member)).collect();
            found.push(Node { path, depth: above + 1, condition });
            for (path, member) in below {
                collect(member, path, above + 1, found);
            }
        }
        ResumeCondition::Count { .. } => found.push(Node { path, depth: above + 1, condition }),
        ResumeCondition::Single { .. } | ResumeCondition::OperatorOnly {} | ResumeCondition::TimeoutOnly {} => {
            found.push(Node { path, depth: above, condition });
        }
    }
}

impl<'a> Node<'a> {
    /// The waitpoint keys this node itself listens to.
    fn lists(&self, key: &str) -> bool {
        match self.condition {
            ResumeCondition::Single { waitpoint_key, .. } => waitpoint_key == key,
            ResumeCondition::Count { waitpoints, .. } => waitpoints.iter().any(|listed| listed == key),
            _ => false,
        }
    }

    /// The matcher of this node itself; a missing one accepts everything.
    fn matcher(&self) -> Option<&'a SignalMatcher> {
        match self.condition {
            ResumeCondition::Single { matcher, .. } => Some(matcher),
            ResumeCondition::Count { matcher, .. } => matcher.as_ref(),
            _ => None,
        }
    }
}
