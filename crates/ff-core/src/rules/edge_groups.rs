//! When a group of inbound edges is decided, and how.
//!
//! A group is `pending` until its counts satisfy its policy or can no longer do so; then it never changes again.

use serde::{Deserialize, Serialize};

use crate::backend::dependencies::{
    DependencyKind, EdgeDependencyPolicy, FlowEligibility, OnSatisfied, ResolveDependencyOutcome, SiblingCancelReason,
};
use crate::error::{EngineError, Result, ValidationKind};
use crate::fault::{Fault, is_on};
use crate::state::{EdgeGroupState, EdgeState, LifecyclePhase, StateVector, TerminalOutcome};

/// The largest quorum.
pub const QUORUM_MAX: u64 = (1 << 31) - 1;

/// Checks a group policy as a caller gives it.
///
/// # Errors
/// `InvalidInput` for a quorum of 0 or beyond [`QUORUM_MAX`].
pub fn check_policy(policy: EdgeDependencyPolicy) -> Result<()> {
    match policy {
        EdgeDependencyPolicy::Quorum { k, .. } if k == 0 || k > QUORUM_MAX => {
            Err(EngineError::invalid(format_args!("quorum k must be from 1 to {QUORUM_MAX}, not {k}")))
        }
        _ => Ok(()),
    }
}

/// What the end of an upstream means to one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum EdgeFate {
    /// The upstream ended as the edge wants.
    Satisfied,
    /// The upstream failed, was cancelled or expired.
    Failed,
    /// The upstream was skipped.
    Skipped,
}

impl EdgeFate {
    /// The state the edge gets.
    #[must_use]
    pub const fn edge_state(self) -> EdgeState {
        match self {
            Self::Satisfied => EdgeState::Satisfied,
            Self::Failed | Self::Skipped => EdgeState::Impossible,
        }
    }

    /// What a caller that settled the edge is told.
    #[must_use]
    pub const fn outcome(self) -> ResolveDependencyOutcome {
        match self {
            Self::Satisfied => ResolveDependencyOutcome::Satisfied,
            Self::Failed | Self::Skipped => ResolveDependencyOutcome::Impossible,
        }
    }
}

/// The fate of an edge whose upstream ended with `outcome`; `None` while it has not ended.
#[must_use]
pub const fn edge_fate(kind: DependencyKind, outcome: TerminalOutcome) -> Option<EdgeFate> {
    match (kind, outcome) {
        (_, TerminalOutcome::None) => None,
        (DependencyKind::Finished, _) | (DependencyKind::SuccessOnly, TerminalOutcome::Success) => {
            Some(EdgeFate::Satisfied)
        }
        (DependencyKind::SuccessOnly, TerminalOutcome::Skipped) => Some(EdgeFate::Skipped),
        (
            DependencyKind::SuccessOnly,
            TerminalOutcome::Failed | TerminalOutcome::Cancelled | TerminalOutcome::Expired,
        ) => Some(EdgeFate::Failed),
    }
}

/// The edges of one group, counted by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct GroupCounts {
    /// All edges.
    pub total: u32,
    /// Those satisfied.
    pub succeeded: u32,
    /// Those whose upstream failed, was cancelled or expired.
    pub failed: u32,
    /// Those whose upstream was skipped.
    pub skipped: u32,
}

impl GroupCounts {
    /// The counts with one more edge settled.
    #[must_use]
    pub const fn with(mut self, fate: EdgeFate) -> Self {
        let bucket = match fate {
            EdgeFate::Satisfied => &mut self.succeeded,
            EdgeFate::Failed => &mut self.failed,
            EdgeFate::Skipped => &mut self.skipped,
        };
        *bucket = bucket.saturating_add(1);
        self
    }

    /// Edges not settled.
    #[must_use]
    pub fn running(self) -> u32 {
        u32::try_from(u64::from(self.total).saturating_sub(self.settled())).unwrap_or(0)
    }

    /// Whether the counts can be true.
    ///
    /// # Errors
    /// `Corruption` when more edges are settled than there are.
    pub fn check(self) -> Result<()> {
        if self.settled() <= u64::from(self.total) {
            return Ok(());
        }
        let detail = format_args!("edge group: {} of {} edges are settled", self.settled(), self.total);
        Err(EngineError::validation(ValidationKind::Corruption, detail))
    }

    fn settled(self) -> u64 {
        u64::from(self.succeeded) + self.lost()
    }

    fn lost(self) -> u64 {
        u64::from(self.failed) + u64::from(self.skipped)
    }
}

/// What the counts of a group amount to, once all its edges are in it.
///
/// The order in which edges settled plays no part, and more settled edges never revoke a decision.
#[must_use]
pub fn verdict(policy: EdgeDependencyPolicy, counts: GroupCounts) -> EdgeGroupState {
    let total = u64::from(counts.total);
    let needed = match policy {
        EdgeDependencyPolicy::AllOf {} => total,
        EdgeDependencyPolicy::AnyOf { .. } => 1,
        EdgeDependencyPolicy::Quorum { k, .. } if is_on(Fault::QuorumTooSmall) => k - 1,
        EdgeDependencyPolicy::Quorum { k, .. } => k,
    };
    if u64::from(counts.succeeded) >= needed {
        EdgeGroupState::Satisfied
    } else if counts.lost().saturating_add(needed) > total {
        EdgeGroupState::Impossible
    } else {
        EdgeGroupState::Pending
    }
}

/// The next state of a group: a decision stands, a pending group follows its counts.
///
/// # Errors
/// `Corruption` when the counts cannot be true; the group then stays as it is.
pub fn decide(current: EdgeGroupState, policy: EdgeDependencyPolicy, counts: GroupCounts) -> Result<EdgeGroupState> {
    counts.check()?;
    Ok(match current {
        EdgeGroupState::Pending => verdict(policy, counts),
        decided => decided,
    })
}

/// Whether the upstreams that still run are cancelled when a group goes from pending to `decided`, and why.
#[must_use]
pub fn sibling_cancel(policy: EdgeDependencyPolicy, decided: EdgeGroupState) -> Option<SiblingCancelReason> {
    let on_satisfied = match policy {
        EdgeDependencyPolicy::AllOf {} => return None,
        EdgeDependencyPolicy::AnyOf { on_satisfied } | EdgeDependencyPolicy::Quorum { on_satisfied, .. } => {
            on_satisfied
        }
    };
    match (on_satisfied, decided) {
        (OnSatisfied::LetRun, EdgeGroupState::Satisfied) if is_on(Fault::LetRunCancels) => {
            Some(SiblingCancelReason::QuorumSatisfied)
        }
        (OnSatisfied::CancelRemaining, EdgeGroupState::Satisfied) => Some(SiblingCancelReason::QuorumSatisfied),
        (OnSatisfied::CancelRemaining, EdgeGroupState::Impossible) => Some(SiblingCancelReason::QuorumImpossible),
        (OnSatisfied::LetRun, _) | (_, EdgeGroupState::Pending) => None,
    }
}

/// What the graph says about an execution in state `vector`, whose current group, if it has one, is `group`.
#[must_use]
pub const fn eligibility(vector: &StateVector, group: Option<EdgeGroupState>) -> FlowEligibility {
    match (vector.lifecycle_phase, group) {
        (LifecyclePhase::Terminal, _) => FlowEligibility::Terminal,
        (LifecyclePhase::Active, _) => FlowEligibility::Owned,
        (LifecyclePhase::Suspended, _) => FlowEligibility::NotRunnable,
        (LifecyclePhase::Runnable, Some(EdgeGroupState::Impossible)) => FlowEligibility::Impossible,
        (LifecyclePhase::Runnable, Some(EdgeGroupState::Pending)) => FlowEligibility::BlockedByDependencies,
        (LifecyclePhase::Runnable, Some(EdgeGroupState::Satisfied) | None) => FlowEligibility::Eligible,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{AttemptState, BlockingReason, EligibilityState, OwnershipState};
    use proptest::prelude::*;

    const ALL_OF: EdgeDependencyPolicy = EdgeDependencyPolicy::AllOf {};
    const ANY_OF: EdgeDependencyPolicy = EdgeDependencyPolicy::AnyOf { on_satisfied: OnSatisfied::LetRun };

    const fn quorum(k: u64) -> EdgeDependencyPolicy {
        EdgeDependencyPolicy::Quorum { k, on_satisfied: OnSatisfied::CancelRemaining }
    }

    fn counts(total: u32, fates: &[EdgeFate]) -> GroupCounts {
        fates.iter().fold(GroupCounts { total, ..Default::default() }, |counts, fate| counts.with(*fate))
    }

    fn policy() -> impl Strategy<Value = EdgeDependencyPolicy> {
        prop_oneof![Just(ALL_OF), Just(ANY_OF), (1..10u64).prop_map(quorum)]
    }

    fn fates(max: usize) -> impl Strategy<Value = Vec<EdgeFate>> {
        proptest::collection::vec(any::<EdgeFate>(), 0..=max)
    }

    #[test]
    fn a_quorum_of_zero_or_beyond_31_bits_is_refused() {
        for k in [0, QUORUM_MAX + 1, u64::MAX] {
            assert_eq!(check_policy(quorum(k)).unwrap_err().code(), "invalid_input");
        }
        for policy in [ALL_OF, ANY_OF, quorum(1), quorum(QUORUM_MAX)] {
            check_policy(policy).unwrap();
        }
    }

    #[test]
    fn success_only_wants_success_and_finished_wants_any_end() {
        let fates = |kind| TerminalOutcome::ALL.iter().map(|outcome| edge_fate(kind, *outcome)).collect::<Vec<_>>();
        use EdgeFate::{Failed, Satisfied, Skipped};
        let success_only = [None, Some(Satisfied), Some(Failed), Some(Failed), Some(Failed), Some(Skipped)];
        assert_eq!(fates(DependencyKind::SuccessOnly), success_only);
        let finished = [None, Some(Satisfied), Some(Satisfied), Some(Satisfied), Some(Satisfied), Some(Satisfied)];
        assert_eq!(fates(DependencyKind::Finished), finished);
    }

    /// The table of the contract, written out independently of `verdict`.
    fn by_the_table(policy: EdgeDependencyPolicy, c: GroupCounts) -> EdgeGroupState {
        let (n, good, bad) = (i64::from(c.total), i64::from(c.succeeded), i64::from(c.failed) + i64::from(c.skipped));
        let (satisfied, impossible) = match policy {
            EdgeDependencyPolicy::AllOf {} => (good == n, bad > 0),
            EdgeDependencyPolicy::AnyOf { .. } => (good >= 1, bad == n),
            EdgeDependencyPolicy::Quorum { k, .. } => {
                let k = i64::try_from(k).unwrap();
                (good >= k, bad > n - k)
            }
        };
        assert!(!(satisfied && impossible), "{policy:?} {c:?}");
        match (satisfied, impossible) {
            (true, _) => EdgeGroupState::Satisfied,
            (_, true) => EdgeGroupState::Impossible,
            _ => EdgeGroupState::Pending,
        }
    }

    #[test]
    fn every_small_group_is_judged_by_the_table() {
        for total in 0..=6u32 {
            for succeeded in 0..=total {
                for failed in 0..=total - succeeded {
                    for skipped in 0..=total - succeeded - failed {
                        let counts = GroupCounts { total, succeeded, failed, skipped };
                        counts.check().unwrap();
                        assert_eq!(counts.running(), total - succeeded - failed - skipped);
                        for policy in [ALL_OF, ANY_OF].into_iter().chain((1..=8).map(quorum)) {
                            let state = verdict(policy, counts);
                            assert_eq!(state, by_the_table(policy, counts), "{policy:?} {counts:?}");
                            let all_settled = counts.running() == 0;
                            assert!(!all_settled || state != EdgeGroupState::Pending, "{policy:?} {counts:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_group_without_edges_is_satisfied_when_all_are_wanted() {
        assert_eq!(verdict(ALL_OF, GroupCounts::default()), EdgeGroupState::Satisfied);
    }

    #[test]
    fn a_quorum_larger_than_its_group_is_impossible() {
        assert_eq!(verdict(quorum(3), counts(2, &[EdgeFate::Satisfied])), EdgeGroupState::Impossible);
        assert_eq!(verdict(quorum(u64::MAX), counts(2, &[EdgeFate::Failed])), EdgeGroupState::Impossible);
    }

    #[test]
    fn counts_that_cannot_be_true_are_corruption_and_decide_nothing() {
        let broken = counts(1, &[EdgeFate::Satisfied, EdgeFate::Failed]);
        assert_eq!(decide(EdgeGroupState::Pending, ALL_OF, broken).unwrap_err().code(), "corruption");
        let huge = GroupCounts { total: 1, succeeded: u32::MAX, failed: u32::MAX, skipped: u32::MAX };
        assert_eq!(huge.check().unwrap_err().code(), "corruption");
        assert_eq!(huge.running(), 0);
    }

    #[test]
    fn siblings_are_cancelled_only_where_the_policy_says_so() {
        use EdgeGroupState::{Impossible, Pending, Satisfied};
        let let_run = EdgeDependencyPolicy::Quorum { k: 2, on_satisfied: OnSatisfied::LetRun };
        for policy in [ALL_OF, ANY_OF, let_run] {
            assert_eq!([Pending, Satisfied, Impossible].map(|state| sibling_cancel(policy, state)), [None; 3]);
        }
        assert_eq!(sibling_cancel(quorum(2), Pending), None);
        assert_eq!(sibling_cancel(quorum(2), Satisfied), Some(SiblingCancelReason::QuorumSatisfied));
        assert_eq!(sibling_cancel(quorum(2), Impossible), Some(SiblingCancelReason::QuorumImpossible));
    }

    #[test]
    fn the_phase_speaks_before_the_group() {
        let vector = |lifecycle_phase| StateVector {
            lifecycle_phase,
            ownership_state: OwnershipState::Unowned,
            eligibility_state: EligibilityState::BlockedByDependencies,
            blocking_reason: BlockingReason::WaitingForChildren,
            terminal_outcome: TerminalOutcome::None,
            attempt_state: AttemptState::PendingFirstAttempt,
        };
        let pending = Some(EdgeGroupState::Pending);
        assert_eq!(eligibility(&vector(LifecyclePhase::Terminal), pending), FlowEligibility::Terminal);
        assert_eq!(eligibility(&vector(LifecyclePhase::Active), pending), FlowEligibility::Owned);
        assert_eq!(eligibility(&vector(LifecyclePhase::Suspended), pending), FlowEligibility::NotRunnable);
        let runnable = vector(LifecyclePhase::Runnable);
        assert_eq!(eligibility(&runnable, pending), FlowEligibility::BlockedByDependencies);
        assert_eq!(eligibility(&runnable, Some(EdgeGroupState::Impossible)), FlowEligibility::Impossible);
        assert_eq!(eligibility(&runnable, Some(EdgeGroupState::Satisfied)), FlowEligibility::Eligible);
        assert_eq!(eligibility(&runnable, None), FlowEligibility::Eligible);
    }

    proptest! {
        #[test]
        fn the_order_in_which_edges_settle_does_not_matter(
            policy in policy(),
            (fates, shuffled) in fates(8).prop_flat_map(|fates| (Just(fates.clone()), Just(fates).prop_shuffle())),
            open in 0..4u32,
        ) {
            let total = u32::try_from(fates.len()).unwrap() + open;
            prop_assert_eq!(verdict(policy, counts(total, &fates)), verdict(policy, counts(total, &shuffled)));
        }

        #[test]
        fn a_group_is_decided_at_most_once(policy in policy(), fates in fates(8), open in 0..4u32) {
            let total = u32::try_from(fates.len()).unwrap() + open;
            let mut state = EdgeGroupState::Pending;
            for settled in 0..=fates.len() {
                let counts = counts(total, &fates[..settled]);
                let next = decide(state, policy, counts).unwrap();
                prop_assert!(state == EdgeGroupState::Pending || next == state);
                prop_assert_eq!(next, verdict(policy, counts), "a later count revoked the decision");
                state = next;
            }
            prop_assert!(open > 0 || state != EdgeGroupState::Pending);
        }

        #[test]
        fn a_decision_stands_whatever_the_counts(policy in policy(), fates in fates(8), open in 0..4u32) {
            let total = u32::try_from(fates.len()).unwrap() + open;
            for decided in [EdgeGroupState::Satisfied, EdgeGroupState::Impossible] {
                prop_assert_eq!(decide(decided, policy, counts(total, &fates)).unwrap(), decided);
            }
        }
    }
}
