//! A caller whose reply was lost asks again: did it already succeed?
//!
//! | Call | Stored | Answer |
//! |---|---|---|
//! | complete | terminal success, same epoch and attempt | completed again |
//! | cancel | terminal cancelled | cancelled again |
//! | fail | terminal failed, same epoch and attempt | failed again |
//! | fail | runnable, a retry of this attempt index pending, same epoch | the stored retry time |
//! | delay | runnable, paused by this attempt for the same time, same epoch | parked again |
//! | wait_children | runnable, paused by this attempt for children, same epoch | parked again |
//! | anything else | | not active |

use crate::error::NotActive;
use crate::ids::{AttemptIndex, LeaseFence};
use crate::rules::fence::Ownership;
use crate::state::{AttemptState, LifecyclePhase, TerminalOutcome};
use crate::time::TimestampMs;
use crate::words::words;

words! {
    /// Why an attempt gave its lease back without ending or suspending.
    pub enum PauseMarker {
        /// It asked to go on later.
        WorkerDelay = "worker_delay",
        /// It waits for its children.
        WaitingChildren = "waiting_children",
    }
}

/// What is stored about an execution that is not active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Parked {
    /// Who owned it last, and how it ended.
    pub ownership: Ownership,
    /// What its next claim does.
    pub attempt_state: AttemptState,
    /// The attempt that a pending retry follows.
    pub retry_of: Option<AttemptIndex>,
    /// When it may go on, as it was asked for; kept when that time has come.
    pub delay_until: Option<TimestampMs>,
    /// Why the attempt paused.
    pub pause: Option<PauseMarker>,
}

/// The call that came again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Call {
    /// complete.
    Complete,
    /// cancel.
    Cancel,
    /// fail.
    Fail,
    /// delay.
    Delay {
        /// Until when.
        until: TimestampMs,
    },
    /// wait_children.
    WaitChildren,
}

/// Who calls; without a fence nobody is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Caller {
    /// What it shows.
    pub fence: Option<LeaseFence>,
    /// Its attempt.
    pub attempt_index: AttemptIndex,
}

/// The first outcome, to be given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It completed; the first result stays.
    Completed,
    /// It is cancelled.
    Cancelled,
    /// It failed for good.
    TerminalFailed,
    /// A retry is scheduled.
    RetryScheduled {
        /// The stored time.
        delay_until: TimestampMs,
    },
    /// It gave its lease back.
    Parked,
}

/// The first outcome of a repeated call. An execution that is already cancelled counts as cancelled for anybody.
///
/// # Errors
/// [`NotActive`] when the call is not recognised as the one that succeeded.
pub fn replay(call: Call, caller: Caller, stored: &Parked) -> Result<Replayed, NotActive> {
    recognise(call, caller, stored).ok_or_else(|| stored.ownership.not_active())
}

fn recognise(call: Call, caller: Caller, stored: &Parked) -> Option<Replayed> {
    let owned = &stored.ownership;
    let ended = |outcome| owned.lifecycle_phase == LifecyclePhase::Terminal && owned.terminal_outcome == outcome;
    if call == Call::Cancel {
        return ended(TerminalOutcome::Cancelled).then_some(Replayed::Cancelled);
    }
    let fence = caller.fence.filter(|fence| fence.lease_epoch == owned.lease_epoch)?;
    let same_attempt = owned.attempt_id == Some(fence.attempt_id);
    let runnable = owned.lifecycle_phase == LifecyclePhase::Runnable;
    let paused = |marker| {
        runnable
            && same_attempt
            && stored.attempt_state == AttemptState::AttemptInterrupted
            && stored.pause == Some(marker)
    };
    let retry_pending = runnable
        && stored.attempt_state == AttemptState::PendingRetryAttempt
        && stored.retry_of == Some(caller.attempt_index);
    match call {
        Call::Complete if same_attempt && ended(TerminalOutcome::Success) => Some(Replayed::Completed),
        Call::Fail if same_attempt && ended(TerminalOutcome::Failed) => Some(Replayed::TerminalFailed),
        Call::Fail if retry_pending => stored.delay_until.map(|delay_until| Replayed::RetryScheduled { delay_until }),
        Call::Delay { until } if paused(PauseMarker::WorkerDelay) && stored.delay_until == Some(until) => {
            Some(Replayed::Parked)
        }
        Call::WaitChildren if paused(PauseMarker::WaitingChildren) => Some(Replayed::Parked),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AttemptId, LeaseEpoch, LeaseId};
    use crate::state::OwnershipState;
    use proptest::prelude::*;
    use uuid::Uuid;

    const UNTIL: TimestampMs = TimestampMs(9000);

    fn caller() -> Caller {
        let fence = LeaseFence {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(1)),
            lease_epoch: LeaseEpoch(2),
            attempt_id: AttemptId::from_uuid(Uuid::from_u128(3)),
        };
        Caller { fence: Some(fence), attempt_index: AttemptIndex(4) }
    }

    fn stored(phase: LifecyclePhase, outcome: TerminalOutcome, attempt_state: AttemptState) -> Parked {
        Parked {
            ownership: Ownership {
                lifecycle_phase: phase,
                ownership_state: OwnershipState::Unowned,
                terminal_outcome: outcome,
                lease_id: None,
                lease_epoch: LeaseEpoch(2),
                attempt_id: Some(AttemptId::from_uuid(Uuid::from_u128(3))),
                attempt_index: AttemptIndex(4),
                lease_expires_at: None,
            },
            attempt_state,
            retry_of: None,
            delay_until: None,
            pause: None,
        }
    }

    fn ended(outcome: TerminalOutcome) -> Parked {
        stored(LifecyclePhase::Terminal, outcome, AttemptState::AttemptTerminal)
    }

    fn paused(marker: PauseMarker) -> Parked {
        let parked = stored(LifecyclePhase::Runnable, TerminalOutcome::None, AttemptState::AttemptInterrupted);
        Parked { pause: Some(marker), delay_until: Some(UNTIL), ..parked }
    }

    fn retrying() -> Parked {
        let mut parked = stored(LifecyclePhase::Runnable, TerminalOutcome::None, AttemptState::PendingRetryAttempt);
        parked.ownership.attempt_id = None;
        Parked { retry_of: Some(AttemptIndex(4)), delay_until: Some(UNTIL), ..parked }
    }

    const DELAY: Call = Call::Delay { until: UNTIL };

    fn table() -> [(Call, Parked, Replayed); 6] {
        [
            (Call::Complete, ended(TerminalOutcome::Success), Replayed::Completed),
            (Call::Cancel, ended(TerminalOutcome::Cancelled), Replayed::Cancelled),
            (Call::Fail, ended(TerminalOutcome::Failed), Replayed::TerminalFailed),
            (Call::Fail, retrying(), Replayed::RetryScheduled { delay_until: UNTIL }),
            (DELAY, paused(PauseMarker::WorkerDelay), Replayed::Parked),
            (Call::WaitChildren, paused(PauseMarker::WaitingChildren), Replayed::Parked),
        ]
    }

    #[test]
    fn every_row_of_the_table_gives_the_first_outcome_again() {
        for (call, stored, outcome) in table() {
            assert_eq!(replay(call, caller(), &stored), Ok(outcome), "{call:?}");
        }
    }

    #[test]
    fn a_row_answers_its_own_call_only() {
        let rows = table();
        for (call, _, outcome) in rows {
            for (other_call, stored, other) in rows {
                if outcome != other && call != other_call {
                    assert_eq!(replay(call, caller(), &stored), Err(stored.ownership.not_active()), "{call:?}");
                }
            }
        }
    }

    #[test]
    fn another_epoch_or_no_fence_is_not_recognised_except_by_cancel() {
        let mut later = caller();
        later.fence = later.fence.map(|fence| LeaseFence { lease_epoch: LeaseEpoch(3), ..fence });
        for stranger in [later, Caller { fence: None, ..caller() }] {
            for (call, stored, outcome) in table() {
                let answer = replay(call, stranger, &stored);
                if call == Call::Cancel {
                    assert_eq!(answer, Ok(outcome));
                } else {
                    assert_eq!(answer, Err(stored.ownership.not_active()), "{call:?}");
                }
            }
        }
    }

    #[test]
    fn another_attempt_is_not_recognised_where_the_attempt_is_kept() {
        let mut other = caller();
        other.fence = other.fence.map(|f| LeaseFence { attempt_id: AttemptId::from_uuid(Uuid::nil()), ..f });
        for (call, stored, _) in table() {
            let kept = stored.ownership.attempt_id.is_some() && call != Call::Cancel;
            assert_eq!(replay(call, other, &stored).is_err(), kept, "{call:?}");
        }
    }

    #[test]
    fn a_retry_of_another_attempt_is_not_this_callers() {
        let other = Caller { attempt_index: AttemptIndex(3), ..caller() };
        assert!(replay(Call::Fail, other, &retrying()).is_err());
        assert!(replay(Call::Fail, caller(), &paused(PauseMarker::WorkerDelay)).is_err(), "merely delayed");
    }

    #[test]
    fn a_delay_to_another_time_is_another_call() {
        let later = Call::Delay { until: UNTIL.plus(1) };
        assert!(replay(later, caller(), &paused(PauseMarker::WorkerDelay)).is_err());
    }

    proptest! {
        #[test]
        fn nothing_but_a_cancel_is_replayed_for_a_stranger(call: Call, stored: Parked, index: AttemptIndex) {
            let stranger = Caller { fence: None, attempt_index: index };
            let answer = replay(call, stranger, &stored);
            prop_assert!(answer.is_err() || answer == Ok(Replayed::Cancelled));
        }

        #[test]
        fn an_active_execution_has_no_first_outcome(call: Call, caller: Caller, mut stored: Parked) {
            stored.ownership.lifecycle_phase = LifecyclePhase::Active;
            prop_assert!(replay(call, caller, &stored).is_err());
        }
    }
}
