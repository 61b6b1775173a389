//! How an owner lost what it held.

use super::{FenceRefusal, Ownership, check_light};
use crate::ids::{AttemptIndex, LeaseFence};
use crate::time::TimestampMs;

/// What became of an ownership that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The attempt is over or parked, and nobody has taken the execution since.
    Ended,
    /// The lease ran out, whether or not anybody has marked it.
    Expired,
    /// The lease was taken away.
    Revoked,
    /// Somebody has taken the execution since.
    Superseded,
}

/// How the holder of a fence lost its attempt; `None` while it owns it.
#[must_use]
pub fn loss(stored: &Ownership, fence: LeaseFence, attempt_index: AttemptIndex, now: TimestampMs) -> Option<Loss> {
    let refusal = check_light(stored, fence, Some(attempt_index), now).err()?;
    if stored.lease_epoch != fence.lease_epoch {
        return Some(Loss::Superseded);
    }
    Some(match refusal {
        FenceRefusal::NotActive(_) => Loss::Ended,
        FenceRefusal::Revoked => Loss::Revoked,
        FenceRefusal::Expired { .. } => Loss::Expired,
        FenceRefusal::Stale => Loss::Superseded,
    })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ids::{AttemptId, LeaseEpoch, LeaseId};
    use crate::state::{LifecyclePhase, OwnershipState, TerminalOutcome};

    const NOW: TimestampMs = TimestampMs(1000);
    const INDEX: AttemptIndex = AttemptIndex(3);

    fn held() -> LeaseFence {
        LeaseFence {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(1)),
            lease_epoch: LeaseEpoch(5),
            attempt_id: AttemptId::from_uuid(Uuid::from_u128(2)),
        }
    }

    fn leased() -> Ownership {
        Ownership {
            lifecycle_phase: LifecyclePhase::Active,
            ownership_state: OwnershipState::Leased,
            terminal_outcome: TerminalOutcome::None,
            lease_id: Some(held().lease_id),
            lease_epoch: held().lease_epoch,
            attempt_id: Some(held().attempt_id),
            attempt_index: INDEX,
            lease_expires_at: Some(NOW.plus(1)),
        }
    }

    #[test]
    fn an_owner_has_lost_nothing() {
        assert_eq!(loss(&leased(), held(), INDEX, NOW), None);
    }

    #[test]
    fn a_lease_is_lost_when_its_time_is_over_marked_or_not() {
        let marked = Ownership { ownership_state: OwnershipState::LeaseExpiredReclaimable, ..leased() };
        assert_eq!(loss(&marked, held(), INDEX, NOW), Some(Loss::Expired));
        assert_eq!(loss(&leased(), held(), INDEX, NOW.plus(1)), Some(Loss::Expired));
    }

    #[test]
    fn a_revoked_lease_and_an_ended_attempt_are_told_apart() {
        let revoked = Ownership { ownership_state: OwnershipState::LeaseRevoked, ..leased() };
        assert_eq!(loss(&revoked, held(), INDEX, NOW), Some(Loss::Revoked));
        let ended = Ownership {
            lifecycle_phase: LifecyclePhase::Terminal,
            ownership_state: OwnershipState::Unowned,
            lease_id: None,
            ..leased()
        };
        assert_eq!(loss(&ended, held(), INDEX, NOW), Some(Loss::Ended));
    }

    #[test]
    fn whoever_took_over_comes_first_whatever_became_of_it_later() {
        let later = Ownership { lease_epoch: LeaseEpoch(6), ..leased() };
        for phase in [LifecyclePhase::Active, LifecyclePhase::Terminal, LifecyclePhase::Suspended] {
            let stored = Ownership { lifecycle_phase: phase, ..later };
            assert_eq!(loss(&stored, held(), INDEX, NOW), Some(Loss::Superseded));
        }
        let revoked = Ownership { ownership_state: OwnershipState::LeaseRevoked, ..later };
        assert_eq!(loss(&revoked, held(), INDEX, NOW), Some(Loss::Superseded));
    }
}
