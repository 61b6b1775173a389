//! All dimensions together.

use serde::{Deserialize, Serialize};

use super::{
    AttemptState, BlockingReason, EligibilityState, LifecyclePhase, OwnershipState, PublicState, TerminalOutcome,
};

/// The stored dimensions of one execution. The public state is computed, never stored beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(deny_unknown_fields)]
pub struct StateVector {
    /// Major phase.
    pub lifecycle_phase: LifecyclePhase,
    /// Who may mutate.
    pub ownership_state: OwnershipState,
    /// Whether it can be claimed.
    pub eligibility_state: EligibilityState,
    /// Why nothing happens.
    pub blocking_reason: BlockingReason,
    /// How it ended.
    pub terminal_outcome: TerminalOutcome,
    /// What the next or current attempt is.
    pub attempt_state: AttemptState,
}

impl StateVector {
    /// The label users see. Total: a corrupt vector still has one.
    #[must_use]
    pub const fn public_state(&self) -> PublicState {
        match self.lifecycle_phase {
            LifecyclePhase::Terminal => match self.terminal_outcome {
                TerminalOutcome::Success => PublicState::Completed,
                TerminalOutcome::Failed | TerminalOutcome::None => PublicState::Failed,
                TerminalOutcome::Cancelled => PublicState::Cancelled,
                TerminalOutcome::Expired => PublicState::Expired,
                TerminalOutcome::Skipped => PublicState::Skipped,
            },
            LifecyclePhase::Suspended => PublicState::Suspended,
            LifecyclePhase::Active => PublicState::Active,
            LifecyclePhase::Runnable => match self.eligibility_state {
                EligibilityState::NotEligibleUntilTime => PublicState::Delayed,
                EligibilityState::BlockedByDependencies => PublicState::WaitingChildren,
                EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota => PublicState::RateLimited,
                EligibilityState::EligibleNow
                | EligibilityState::BlockedByRoute
                | EligibilityState::BlockedByLaneState
                | EligibilityState::BlockedByOperator
                | EligibilityState::NotApplicable => PublicState::Waiting,
            },
        }
    }

    /// Whether the dimensions agree with each other.
    #[must_use]
    pub fn is_legal(&self) -> bool {
        let terminal = self.lifecycle_phase == LifecyclePhase::Terminal;
        let active = self.lifecycle_phase == LifecyclePhase::Active;
        let runnable = self.lifecycle_phase == LifecyclePhase::Runnable;
        let suspended = self.lifecycle_phase == LifecyclePhase::Suspended;
        let owned = self.ownership_state != OwnershipState::Unowned;
        let leased = self.ownership_state == OwnershipState::Leased;
        let running = self.attempt_state == AttemptState::RunningAttempt;
        let interrupted = self.attempt_state == AttemptState::AttemptInterrupted;
        terminal == (self.terminal_outcome != TerminalOutcome::None)
            && active == owned
            && runnable == (self.eligibility_state != EligibilityState::NotApplicable)
            && leased == running
            && (!active || leased || interrupted)
            && (!suspended || interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runnable(eligibility_state: EligibilityState) -> StateVector {
        StateVector {
            lifecycle_phase: LifecyclePhase::Runnable,
            ownership_state: OwnershipState::Unowned,
            eligibility_state,
            blocking_reason: BlockingReason::WaitingForWorker,
            terminal_outcome: TerminalOutcome::None,
            attempt_state: AttemptState::PendingFirstAttempt,
        }
    }

    #[test]
    fn a_route_block_shows_as_waiting_and_a_quota_block_as_rate_limited() {
        assert_eq!(runnable(EligibilityState::BlockedByRoute).public_state(), PublicState::Waiting);
        assert_eq!(runnable(EligibilityState::BlockedByQuota).public_state(), PublicState::RateLimited);
        assert_eq!(runnable(EligibilityState::BlockedByBudget).public_state(), PublicState::RateLimited);
    }

    #[test]
    fn a_lease_outside_the_active_phase_is_illegal() {
        let vector = StateVector { ownership_state: OwnershipState::Leased, ..runnable(EligibilityState::EligibleNow) };
        assert!(!vector.is_legal());
        assert!(runnable(EligibilityState::EligibleNow).is_legal());
        assert!(!runnable(EligibilityState::NotApplicable).is_legal());
    }

    proptest! {
        #[test]
        fn every_vector_has_a_public_state_that_is_terminal_exactly_in_the_terminal_phase(vector: StateVector) {
            prop_assert_eq!(vector.public_state().is_terminal(), vector.lifecycle_phase == LifecyclePhase::Terminal);
            prop_assert_ne!(vector.public_state(), PublicState::Resumable);
        }
    }
}
