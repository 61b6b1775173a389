//! Who may act on an active execution: the holder of its lease, proven by (lease, epoch, attempt).

mod loss;
mod source;

use crate::error::{ContentionKind, EngineError, NotActive, Result, StateKind};
use crate::fault::{Fault, is_on};
use crate::ids::{AttemptId, AttemptIndex, FenceTriple, LeaseEpoch, LeaseFence, LeaseId};
use crate::state::{LifecyclePhase, OwnershipState, TerminalOutcome};
use crate::time::TimestampMs;

pub use loss::{Loss, loss};
pub use source::CancelSource;

/// What is stored about the ownership of one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub struct Ownership {
    /// Major phase.
    pub lifecycle_phase: LifecyclePhase,
    /// Who may mutate.
    pub ownership_state: OwnershipState,
    /// How it ended.
    pub terminal_outcome: TerminalOutcome,
    /// The current lease.
    pub lease_id: Option<LeaseId>,
    /// The last epoch granted; kept when the lease is gone.
    pub lease_epoch: LeaseEpoch,
    /// The last attempt; kept when the execution ends, cleared when a retry is scheduled.
    pub attempt_id: Option<AttemptId>,
    /// Its position.
    pub attempt_index: AttemptIndex,
    /// When the lease runs out.
    pub lease_expires_at: Option<TimestampMs>,
}

impl Ownership {
    /// What a caller is told when the execution is not active.
    #[must_use]
    pub const fn not_active(&self) -> NotActive {
        NotActive {
            terminal_outcome: self.terminal_outcome,
            lease_epoch: self.lease_epoch,
            lifecycle_phase: self.lifecycle_phase,
            attempt_id: self.attempt_id,
        }
    }

    /// The fence of the current owner.
    #[must_use]
    pub fn fence(&self) -> Option<LeaseFence> {
        let (lease_id, attempt_id) = self.lease_id.zip(self.attempt_id)?;
        Some(LeaseFence { lease_id, lease_epoch: self.lease_epoch, attempt_id })
    }

    /// Whether the lease is over at `now`: known to be, or about to be found so.
    fn expiry(&self, now: TimestampMs) -> Result<(), FenceRefusal> {
        match self.ownership_state {
            OwnershipState::LeaseExpiredReclaimable => Err(FenceRefusal::Expired { unmarked: false }),
            OwnershipState::Leased if is_on(Fault::ExpiredLeaseHonoured) => Ok(()),
            OwnershipState::Leased if self.lease_expires_at.is_none_or(|end| end.is_due(now)) => {
                Err(FenceRefusal::Expired { unmarked: true })
            }
            _ => Ok(()),
        }
    }
}

/// Whether an operation can do without a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceRule {
    /// Never: renew and suspend.
    Mandatory,
    /// For `operator_override`: complete, fail, delay, wait_children.
    UnlessOverride,
}

/// What a caller shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presented {
    /// A fence, and the attempt index where the operation has one.
    Fenced {
        /// The fence.
        fence: LeaseFence,
        /// The attempt index.
        attempt_index: Option<AttemptIndex>,
    },
    /// Nothing: the stored fence stands in for it.
    Override,
}

impl Presented {
    /// A fence without an attempt index.
    #[must_use]
    pub const fn fence(fence: LeaseFence) -> Self {
        Self::Fenced { fence, attempt_index: None }
    }

    /// Reads what a caller gave.
    ///
    /// # Errors
    /// `InvalidInput`: `partial_fence_triple` for one or two parts, `fence_required` for none where one is needed.
    pub fn read(
        triple: FenceTriple,
        attempt_index: Option<AttemptIndex>,
        source: &CancelSource,
        rule: FenceRule,
    ) -> Result<Self> {
        match triple.complete()? {
            Some(fence) => Ok(Self::Fenced { fence, attempt_index }),
            None if rule == FenceRule::UnlessOverride && source.is_override() => Ok(Self::Override),
            None => Err(fence_required()),
        }
    }
}

fn fence_required() -> EngineError {
    EngineError::invalid("fence_required")
}

/// Why a caller may not act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceRefusal {
    /// The execution is not active.
    NotActive(NotActive),
    /// The lease was revoked.
    Revoked,
    /// The lease ran out.
    Expired {
        /// Whether the record still says `leased`: a write path marks it reclaimable in the same commit.
        unmarked: bool,
    },
    /// Lease, epoch, attempt or index differ.
    Stale,
}

impl FenceRefusal {
    /// Whether the record must be marked expired in the same commit.
    #[must_use]
    pub const fn marks_expired(&self) -> bool {
        matches!(self, Self::Expired { unmarked: true })
    }

    /// The error of an append, which speaks of streams.
    #[must_use]
    pub const fn for_append(&self) -> EngineError {
        match self {
            Self::NotActive(_) => EngineError::State(StateKind::StreamClosed),
            Self::Revoked | Self::Expired { .. } | Self::Stale => EngineError::State(StateKind::StaleOwnerCannotAppend),
        }
    }
}

impl From<FenceRefusal> for EngineError {
    fn from(refusal: FenceRefusal) -> Self {
        match refusal {
            FenceRefusal::NotActive(detail) => ContentionKind::ExecutionNotActive(detail).into(),
            FenceRefusal::Revoked => StateKind::LeaseRevoked.into(),
            FenceRefusal::Expired { .. } => StateKind::LeaseExpired.into(),
            FenceRefusal::Stale => StateKind::StaleLease.into(),
        }
    }
}

/// The full check of a write: active, not revoked, not expired, then the fence. Gives the fence in force.
/// That the execution exists is checked before.
///
/// # Errors
/// [`FenceRefusal`]; after [`FenceRefusal::marks_expired`] the caller marks the record and still refuses.
pub fn check_full(stored: &Ownership, presented: Presented, now: TimestampMs) -> Result<LeaseFence, FenceRefusal> {
    if stored.lifecycle_phase != LifecyclePhase::Active {
        return Err(FenceRefusal::NotActive(stored.not_active()));
    }
    if stored.ownership_state == OwnershipState::LeaseRevoked {
        return Err(FenceRefusal::Revoked);
    }
    stored.expiry(now)?;
    let held = stored.fence().ok_or(FenceRefusal::Stale)?;
    match presented {
        Presented::Override => Ok(held),
        Presented::Fenced { fence, attempt_index }
            if is_on(Fault::FenceNotCompared)
                || (fence == held && attempt_index.is_none_or(|index| index == stored.attempt_index)) =>
        {
            Ok(held)
        }
        Presented::Fenced { .. } => Err(FenceRefusal::Stale),
    }
}

/// The light check of progress and append: the same tests, but an expired lease is left for others to mark.
///
/// # Errors
/// [`FenceRefusal`], which never asks for a mark.
pub fn check_light(
    stored: &Ownership,
    fence: LeaseFence,
    attempt_index: Option<AttemptIndex>,
    now: TimestampMs,
) -> Result<(), FenceRefusal> {
    match check_full(stored, Presented::Fenced { fence, attempt_index }, now) {
        Ok(_) => Ok(()),
        Err(FenceRefusal::Expired { .. }) => Err(FenceRefusal::Expired { unmarked: false }),
        Err(other) => Err(other),
    }
}

/// Why a cancellation is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelRefusal {
    /// A lease is in the way, and neither a fence nor the operator's word was given.
    FenceRequired,
    /// The fence was given and does not hold.
    Fence(FenceRefusal),
}

impl From<CancelRefusal> for EngineError {
    fn from(refusal: CancelRefusal) -> Self {
        match refusal {
            CancelRefusal::FenceRequired => fence_required(),
            CancelRefusal::Fence(refusal) => refusal.into(),
        }
    }
}

/// Whether an execution that has not ended may be cancelled. Without a lease anybody may; with one it takes
/// `operator_override`, or lease and epoch (and attempt, when given) of a live lease.
///
/// # Errors
/// [`CancelRefusal`]: fence required, then stale, revoked, expired.
pub fn check_cancel(
    stored: &Ownership,
    triple: FenceTriple,
    source: &CancelSource,
    now: TimestampMs,
) -> Result<(), CancelRefusal> {
    if stored.lifecycle_phase != LifecyclePhase::Active || source.is_override() {
        return Ok(());
    }
    let (Some(lease_id), Some(lease_epoch)) = (triple.lease_id, triple.lease_epoch) else {
        return Err(CancelRefusal::FenceRequired);
    };
    let same_attempt = triple.attempt_id.is_none_or(|attempt| stored.attempt_id == Some(attempt));
    if stored.lease_id != Some(lease_id) || stored.lease_epoch != lease_epoch || !same_attempt {
        return Err(CancelRefusal::Fence(FenceRefusal::Stale));
    }
    if stored.ownership_state == OwnershipState::LeaseRevoked {
        return Err(CancelRefusal::Fence(FenceRefusal::Revoked));
    }
    stored.expiry(now).map_err(CancelRefusal::Fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ValidationKind;
    use proptest::prelude::*;
    use uuid::Uuid;

    const NOW: TimestampMs = TimestampMs(1000);

    fn lease(n: u128) -> LeaseId {
        LeaseId::from_uuid(Uuid::from_u128(n))
    }

    fn attempt(n: u128) -> AttemptId {
        AttemptId::from_uuid(Uuid::from_u128(n))
    }

    fn held() -> LeaseFence {
        LeaseFence { lease_id: lease(1), lease_epoch: LeaseEpoch(5), attempt_id: attempt(2) }
    }

    fn leased() -> Ownership {
        Ownership {
            lifecycle_phase: LifecyclePhase::Active,
            ownership_state: OwnershipState::Leased,
            terminal_outcome: TerminalOutcome::None,
            lease_id: Some(lease(1)),
            lease_epoch: LeaseEpoch(5),
            attempt_id: Some(attempt(2)),
            attempt_index: AttemptIndex(3),
            lease_expires_at: Some(NOW.plus(1)),
        }
    }

    fn strangers() -> [LeaseFence; 3] {
        [
            LeaseFence { lease_id: lease(9), ..held() },
            LeaseFence { lease_epoch: LeaseEpoch(4), ..held() },
            LeaseFence { attempt_id: attempt(9), ..held() },
        ]
    }

    fn indexed(index: u32) -> Presented {
        Presented::Fenced { fence: held(), attempt_index: Some(AttemptIndex(index)) }
    }

    #[test]
    fn the_owner_passes_with_or_without_its_attempt_index() {
        assert_eq!(check_full(&leased(), Presented::fence(held()), NOW), Ok(held()));
        assert_eq!(check_full(&leased(), indexed(3), NOW), Ok(held()));
        assert_eq!(check_light(&leased(), held(), Some(AttemptIndex(3)), NOW), Ok(()));
    }

    #[test]
    fn any_differing_part_is_stale() {
        for fence in strangers() {
            assert_eq!(check_full(&leased(), Presented::fence(fence), NOW), Err(FenceRefusal::Stale));
            assert_eq!(check_light(&leased(), fence, None, NOW), Err(FenceRefusal::Stale));
        }
        assert_eq!(check_full(&leased(), indexed(2), NOW), Err(FenceRefusal::Stale));
    }

    #[test]
    fn a_lease_is_over_at_its_last_millisecond_and_a_write_marks_it() {
        let due = Ownership { lease_expires_at: Some(NOW), ..leased() };
        let refused = check_full(&due, Presented::fence(held()), NOW).expect_err("expired");
        assert!(refused.marks_expired());
        assert!(matches!(EngineError::from(refused), EngineError::State(StateKind::LeaseExpired)));
        let light = check_light(&due, held(), None, NOW).expect_err("expired");
        assert!(light == FenceRefusal::Expired { unmarked: false } && !light.marks_expired());
        let marked = Ownership { ownership_state: OwnershipState::LeaseExpiredReclaimable, ..leased() };
        let refused = check_full(&marked, Presented::fence(held()), NOW).expect_err("expired");
        assert_eq!(refused, FenceRefusal::Expired { unmarked: false });
    }

    #[test]
    fn faults_are_reported_in_order() {
        let stranger = Presented::fence(strangers()[0]);
        let expired = Ownership { lease_expires_at: Some(NOW), ..leased() };
        let revoked = Ownership { ownership_state: OwnershipState::LeaseRevoked, ..expired };
        let ended = Ownership {
            lifecycle_phase: LifecyclePhase::Terminal,
            terminal_outcome: TerminalOutcome::Success,
            ..revoked
        };
        assert_eq!(check_full(&ended, stranger, NOW), Err(FenceRefusal::NotActive(ended.not_active())));
        assert_eq!(check_full(&revoked, stranger, NOW), Err(FenceRefusal::Revoked));
        assert_eq!(check_full(&expired, stranger, NOW), Err(FenceRefusal::Expired { unmarked: true }));
    }

    #[test]
    fn an_override_takes_the_stored_fence_but_not_a_lost_lease() {
        assert_eq!(check_full(&leased(), Presented::Override, NOW), Ok(held()));
        let revoked = Ownership { ownership_state: OwnershipState::LeaseRevoked, ..leased() };
        assert_eq!(check_full(&revoked, Presented::Override, NOW), Err(FenceRefusal::Revoked));
        let due = Ownership { lease_expires_at: Some(NOW), ..leased() };
        assert_eq!(check_full(&due, Presented::Override, NOW), Err(FenceRefusal::Expired { unmarked: true }));
    }

    #[test]
    fn a_refused_caller_learns_who_owned_the_execution_last() {
        let ended = Ownership {
            lifecycle_phase: LifecyclePhase::Terminal,
            ownership_state: OwnershipState::Unowned,
            terminal_outcome: TerminalOutcome::Cancelled,
            lease_id: None,
            ..leased()
        };
        let refused = check_full(&ended, Presented::fence(held()), NOW).expect_err("ended");
        assert!(matches!(
            EngineError::from(refused),
            EngineError::Contention(ContentionKind::ExecutionNotActive(NotActive {
                terminal_outcome: TerminalOutcome::Cancelled,
                lease_epoch: LeaseEpoch(5),
                lifecycle_phase: LifecyclePhase::Terminal,
                attempt_id: Some(_),
            }))
        ));
    }

    #[test]
    fn an_append_is_refused_in_the_words_of_streams() {
        let closed = FenceRefusal::NotActive(leased().not_active()).for_append();
        assert!(matches!(closed, EngineError::State(StateKind::StreamClosed)));
        for refusal in [FenceRefusal::Revoked, FenceRefusal::Expired { unmarked: false }, FenceRefusal::Stale] {
            assert!(matches!(refusal.for_append(), EngineError::State(StateKind::StaleOwnerCannotAppend)));
        }
    }

    fn read(triple: FenceTriple, source: &CancelSource, rule: FenceRule) -> Result<Presented, String> {
        Presented::read(triple, None, source, rule).map_err(|e| match e {
            EngineError::Validation { kind: ValidationKind::InvalidInput, detail } => detail,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn only_an_operator_may_leave_the_fence_out_and_never_for_renew_and_suspend() {
        let required = Err("fence_required".to_owned());
        let operator = CancelSource::OperatorOverride;
        assert_eq!(read(FenceTriple::NONE, &operator, FenceRule::UnlessOverride), Ok(Presented::Override));
        assert_eq!(read(FenceTriple::NONE, &operator, FenceRule::Mandatory), required);
        for source in ["lease_holder", "flow_cascade", "system_timeout", "me", ""] {
            assert_eq!(read(FenceTriple::NONE, &source.into(), FenceRule::UnlessOverride), required);
        }
        assert_eq!(read(held().into(), &operator, FenceRule::UnlessOverride), Ok(Presented::fence(held())));
    }

    #[test]
    fn a_partial_fence_is_refused_even_from_an_operator() {
        let full = FenceTriple::from(held());
        for partial in [
            FenceTriple { lease_id: None, ..full },
            FenceTriple { attempt_id: None, ..full },
            FenceTriple { lease_epoch: full.lease_epoch, ..FenceTriple::NONE },
        ] {
            for rule in [FenceRule::Mandatory, FenceRule::UnlessOverride] {
                let refused = read(partial, &CancelSource::OperatorOverride, rule);
                assert_eq!(refused, Err("partial_fence_triple".to_owned()));
            }
        }
    }

    #[test]
    fn a_cancellation_of_leased_work_needs_the_lease_or_an_operator() {
        let worker = CancelSource::LeaseHolder;
        let full = FenceTriple::from(held());
        let cancel = |stored: &Ownership, triple, source: &CancelSource| check_cancel(stored, triple, source, NOW);
        assert_eq!(cancel(&leased(), FenceTriple::NONE, &CancelSource::OperatorOverride), Ok(()));
        assert_eq!(cancel(&leased(), full, &worker), Ok(()));
        assert_eq!(cancel(&leased(), FenceTriple { attempt_id: None, ..full }, &worker), Ok(()));
        for missing in [FenceTriple::NONE, FenceTriple { lease_id: None, ..full }] {
            assert_eq!(cancel(&leased(), missing, &worker), Err(CancelRefusal::FenceRequired));
        }
        let revoked = Ownership { ownership_state: OwnershipState::LeaseRevoked, ..leased() };
        for fence in strangers() {
            assert_eq!(cancel(&revoked, fence.into(), &worker), Err(CancelRefusal::Fence(FenceRefusal::Stale)));
        }
        assert_eq!(cancel(&revoked, full, &worker), Err(CancelRefusal::Fence(FenceRefusal::Revoked)));
        assert_eq!(cancel(&revoked, FenceTriple::NONE, &CancelSource::OperatorOverride), Ok(()));
        let due = Ownership { lease_expires_at: Some(NOW), ..leased() };
        let expired = FenceRefusal::Expired { unmarked: true };
        assert_eq!(cancel(&due, full, &worker), Err(CancelRefusal::Fence(expired)));
    }

    #[test]
    fn a_cancellation_of_unleased_work_is_open_to_any_source() {
        for phase in [LifecyclePhase::Runnable, LifecyclePhase::Suspended] {
            let parked = Ownership { lifecycle_phase: phase, ownership_state: OwnershipState::Unowned, ..leased() };
            assert_eq!(check_cancel(&parked, FenceTriple::NONE, &"me".into(), NOW), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn only_a_live_lease_lets_anyone_through(stored: Ownership, fence: LeaseFence, now: TimestampMs) {
            for presented in [Presented::fence(fence), Presented::Override] {
                if check_full(&stored, presented, now).is_ok() {
                    prop_assert_eq!(stored.lifecycle_phase, LifecyclePhase::Active);
                    prop_assert_ne!(stored.ownership_state, OwnershipState::LeaseRevoked);
                    prop_assert_ne!(stored.ownership_state, OwnershipState::LeaseExpiredReclaimable);
                }
            }
        }
    }
}
